"""The main job: a gateway, Spark, and a fleet of simulated clients that speak all protocols with real libraries."""
