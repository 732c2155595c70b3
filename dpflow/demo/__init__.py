"""The demo: the main job on real data, end to end, through a real Airflow scheduler."""
