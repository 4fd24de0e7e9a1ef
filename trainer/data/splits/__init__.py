"""Divide subjects into training, validation and test."""
