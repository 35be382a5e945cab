"""A section of YAML as a pydantic model, and how its fields are declared.

Fields bear the names of the core structs that they fill (units included); the alias is what stands in YAML.
Defaults stand in the core structs alone: a field that is not written is not passed on.
"""

from typing import Any, ClassVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

API_VERSION = "sentinel.dev/v1alpha1"


def written(alias: str, meaning: str) -> Any:
    """A field that may be left out; the core struct then has its default."""
    return Field(default=None, alias=alias, description=meaning)


def required(alias: str, meaning: str) -> Any:
    return Field(alias=alias, description=meaning)


class Section(BaseModel):
    # Built when it is first read: a job with a policy starts without the schema of settings.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)
    core: ClassVar[type[Struct] | None] = None
