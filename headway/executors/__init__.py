"""Compute: implementations of `headway.core.plan.Executor`."""
