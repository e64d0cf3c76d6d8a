"""Fast start of Spark: Java, an archive of its classes, a daemon that has imported what workers need."""
