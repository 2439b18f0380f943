"""Tests that need a real sandbox."""

import shutil

import pytest

HAS_BUBBLEWRAP = shutil.which("bwrap") is not None
needs_bubblewrap = pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="bubblewrap is not installed")
