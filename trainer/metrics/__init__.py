"""How good predictions are: functions from labels and predictions to numbers that JSON can hold."""
