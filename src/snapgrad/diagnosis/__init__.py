"""The theory as advice: what a pool of rows of the user's own model says about how to train it."""

from ._diagnose import diagnose as diagnose
from ._report import Diagnosis as Diagnosis
