"""Forecasts of starts: from the run times of this cluster's pods so far, and the engine run forward."""
