"""The tensors of an NPZ file as a checkpoint: plain members are mapped, all others are made when they are asked for."""

from __future__ import annotations

from math import prod
from pathlib import Path

from cacheir.errors import MalformedModelError
from cacheir.ir.dtypes import dtype_bytes
from cacheir_importers.huggingface.checkpoint import Checkpoint
from cacheir_importers.made_tensors import MadeTensor
from cacheir_importers.npz.members import Member, read_members
from cacheir_importers.weight_table import StoredTensor

_FORMATS = {"f2": "f16", "f4": "f32", "f8": "f64"}
_KINDS = {"O": "an object array, which is pickled", "V": "records"}


def open_npz(path: Path) -> Checkpoint:
    """The arrays of the file at ``path``, called as in a Hugging Face checkpoint. Raises as ``read_members`` does.

    Arrays of a type that is no weight are listed without a format: they are refused by name where one is needed.
    """
    members = read_members(path, path.name)
    tensors: dict[str, StoredTensor] = {}
    made: dict[str, MadeTensor] = {}
    for name, member in members.items():
        found = _tensor(path.name, member)
        if isinstance(found, MadeTensor):
            made[name] = found
            tensors[name] = found.stand_in()
        else:
            tensors[name] = found
    return Checkpoint(tensors, (path.name,), ((path.name, _header_text(members)),), (), made)


def _tensor(file: str, member: Member) -> StoredTensor | MadeTensor:
    header = member.header
    format_ = _FORMATS.get(header.kind, "")
    if not format_:
        return _stored(file, member, _KINDS.get(header.kind, f"NumPy's {header.kind}"), "", 0)
    needed = header.nbytes + prod(header.shape) * dtype_bytes(format_)
    if member.size != needed:
        raise MalformedModelError(
            f"{file}: member {member.name + '.npy'!r}, {format_}{list(header.shape)}, takes {needed} bytes with its"
            f" header, and has {member.size}"
        )
    if not (member.deflated or header.big_endian or header.fortran):
        return _stored(file, member, format_, format_, header.nbytes)
    raw = StoredTensor(
        file=file,
        name=member.name,
        offset=member.offset,
        nbytes=member.nbytes,
        type_name="bytes",
        format="u8",
        shape=(member.nbytes,),
    )
    return MadeTensor(
        name=member.name,
        method="npy",
        parts={"member": raw},
        dtype=format_,
        shape=header.shape,
        attrs={
            "big_endian": header.big_endian,
            "deflated": member.deflated,
            "fortran": header.fortran,
            "size": member.size,
            "skip": header.nbytes,
        },
    )


def _stored(file: str, member: Member, type_name: str, format_: str, skip: int) -> StoredTensor:
    return StoredTensor(
        file=file,
        name=member.name,
        offset=member.offset + skip,
        nbytes=member.nbytes - skip,
        type_name=type_name,
        format=format_,
        shape=member.header.shape,
    )


def _header_text(members: dict[str, Member]) -> bytes:
    return "\n".join(repr(member) for _, member in sorted(members.items())).encode("utf-8", "surrogatepass")
