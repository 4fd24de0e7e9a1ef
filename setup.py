"""The one compiled part. All else is in setup.cfg; without a C compiler the package does without this."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "trainer.data._halves",
            ["trainer/data/halves.c", "trainer/data/blosc_halves.c"],
            depends=["trainer/data/halves.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
