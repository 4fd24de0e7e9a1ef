"""The one compiled part. All else is in setup.cfg; without a C compiler the package does without this."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "trainer.data.shards._halves",
            ["trainer/data/shards/halves.c", "trainer/data/shards/blosc_halves.c"],
            depends=["trainer/data/shards/halves.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
