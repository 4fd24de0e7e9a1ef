"""Grid Engine (Son of Grid Engine 8.1) behind the contract of jobs/schedulers/base.py."""
