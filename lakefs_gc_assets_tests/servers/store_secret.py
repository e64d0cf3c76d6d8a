"""The environment variable with the store's secret for configuration files of tests, and its value.

Spark's workers read it as well: they have the environment in which the tests' session was started.
"""

VARIABLE = "TEST_STORE_SECRET"
SECRET = "s3cr3t-that-nobody-may-see"
