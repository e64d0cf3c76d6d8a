"""Fast start of Spark: Java, an archive of its classes, and a daemon with all imports of the workers."""
