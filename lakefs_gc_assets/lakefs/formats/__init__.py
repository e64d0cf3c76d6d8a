"""lakeFS's file formats, read strictly: ranges, metaranges, dumps of references."""
