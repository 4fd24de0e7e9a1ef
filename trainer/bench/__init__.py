"""Everything behind `cingulum bench`."""
