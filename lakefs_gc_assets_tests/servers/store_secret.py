"""The environment variable that configuration files of tests take the store's secret from, and its value.

Spark's workers read it as well: they have the environment in which the session of the tests was started.
"""

VARIABLE = "TEST_STORE_SECRET"
SECRET = "s3cr3t-that-nobody-may-see"
