"""The parts of ``train_lm.py``: options, text, model, training, scripted copies, report, chart."""
