"""Checks for parts of your own: the tests that every rule and client term of Steelyard has to pass.

>>> import steelyard
>>> from steelyard.testing import check_rule, check_term
>>> check_rule(steelyard.fedadp())
>>> check_term(steelyard.fedprox())

Each check is a plain function that raises AssertionError with a sentence; no test framework is
needed.
"""

from steelyard.testing._rule_checks import RULE_CHECKS, check_rule
from steelyard.testing._term_checks import TERM_CHECKS, check_term

__all__ = ["RULE_CHECKS", "TERM_CHECKS", "check_rule", "check_term"]
