"""The budget page: a ledger to look at, alone (`dpflow ui`) or inside Airflow. It loads nothing from
elsewhere and runs no script.
"""
