"""Start and time what `cingulum bench` measures; trainer/bench has what the processes run."""
