"""What runs beside a training job: delegates, and adapters for the runtimes that people have.

It needs the standard library, numpy and torch alone: nothing of the simulator is imported.
"""
