"""Jobs without a scheduler: an attendant per job, and mpirun, Docker or Apptainer under it."""
