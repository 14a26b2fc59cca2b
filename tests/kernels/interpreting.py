"""Runs a program of this folder in a process of its own: Triton's interpreter is chosen when triton is
imported, and what stands in for Gluon replaces modules.

As a program: `python -m tests.kernels.interpreting MODULE` is `python -m MODULE` with less that is done in
vain by the interpreter. What is computed stays the same.
"""

import functools
import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace


def interpreted(module: str):
    """What the program prints as JSON, run in Triton's interpreter."""
    return printed("-m", "tests.kernels.interpreting", module, TRITON_INTERPRET="1")


def printed(*words: str, **environment: str):
    """What Python prints as JSON."""
    command = [sys.executable, "-W", "ignore", *words]
    given = os.environ | environment
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def do_less() -> None:
    """Spares the interpreter half of its time.

    It replaces the language's functions again at every call of a function inside a kernel, makes a table of
    dtypes for every look-up in it, and computes whether integers overflow without looking at the answer.
    """
    from triton.runtime import interpreter

    done: set[tuple[int, ...]] = set()
    replace_functions, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__

    @functools.cache
    def languages(function) -> tuple[int, ...]:
        known = [id(interpreter.tl), id(interpreter.tl.core)]
        return tuple(id(value) for value in function.__globals__.values() if id(value) in known)

    def replace_once(function):
        if languages(function) in done:
            return None
        done.add(languages(function))
        return replace_functions(function)

    plain = functools.cache(interpreter._get_np_dtype)
    whole = interpreter._get_np_dtype

    def numpy_type(kind):
        scalar = kind.scalar
        return whole(scalar) if scalar.is_ptr() else plain(scalar)

    @functools.wraps(launch)
    def launch_anew(self, *args, **keywords):
        done.clear()
        return launch(self, *args, **keywords)

    interpreter._patch_lang = replace_once
    interpreter.GridExecutor.__call__ = launch_anew
    interpreter._get_np_dtype = numpy_type
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def let_loops_end_on_loaded_numbers() -> None:
    """The interpreter has a loop's bound as an array of one number, which NumPy 2.4 takes for no index."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def repaired(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = repaired


if __name__ == "__main__":
    do_less()
    let_loops_end_on_loaded_numbers()
    runpy.run_module(sys.argv[1], run_name="__main__")
