"""What starts Spark fast: Java, an archive of its classes, a daemon that has imported what workers need."""
