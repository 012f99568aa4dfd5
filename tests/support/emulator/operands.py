"""Operands of PTX instructions as C: registers, numbers, names and addresses."""

from __future__ import annotations

import re

C_TYPES = {
    "pred": "uint8_t", "f32": "float", "f64": "double", "b128": "u128",
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
}  # fmt: skip
OF_BITS, TO_BITS = {"f32": "float_of", "f64": "double_of"}, {"float": "bits_of", "double": "bits_of_double"}
SPECIAL = {
    "%tid.x": "(uint32_t)t->tid", "%ntid.x": "(uint32_t)launch.threads", "%ctaid.x": "(uint32_t)t->cta->number",
    "%nctaid.x": "(uint32_t)launch.grid", "%laneid": "(uint32_t)t->lane", "%lanemask_lt": "((1u << t->lane) - 1)",
    "%cluster_ctarank": "(uint32_t)t->cta->rank", "%cluster_nctaid.x": "(uint32_t)t->cta->cluster->ctas",
    "%clusterid.x": "(uint32_t)t->cta->cluster->number",
    "%clock64": "(ticks += 500)", "%globaltimer": "(ticks += 500)",
}  # fmt: skip


class UnknownInstructionError(Exception):
    """An instruction, or a form of one, that no kernel has had so far."""


def identifier(name: str) -> str:
    """C name of a register, label or symbol."""
    return re.sub(r"\W", "_", name.replace("%", "r_"))


class Function:
    """One PTX function while it is translated."""

    def __init__(self, shared: dict[str, int]) -> None:
        self.shared = shared  # where in the window of shared memory a name stands
        self.types: dict[str, str] = {}  # C type of each register
        self.symbols: dict[str, str] = {}  # C pointer to what a name in .param or .local space stands for
        self.scopes: list[dict[str, tuple[str, int]]] = []  # C names of labels, and their lines, innermost scope last

    def label(self, name: str) -> tuple[str, int]:
        """C name of a label that is in scope, and its line."""
        return next(scope[name] for scope in reversed(self.scopes) if name in scope)

    def type_of(self, name: str) -> str | None:
        return self.types.get(name) or self.types.get(re.sub(r"\d+$", "", name))

    def read(self, operand: str, kind: str) -> str:
        """C expression of an operand as a PTX type."""
        ctype = C_TYPES[kind]
        if operand.startswith("!"):
            return f"!{self.read(operand[1:], kind)}"
        if operand in SPECIAL:
            return f"({ctype})({SPECIAL[operand]})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand):
            bits = f"0x{operand[2:]}u"
            return f"float_of({bits})" if kind == "f32" else f"({ctype}){bits}"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", operand):
            return f"double_of(0x{operand[2:]}ull)"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            if kind == "f32":
                return f"float_of({number & 0xFFFFFFFF}u)"
            if kind == "pred":
                return str(int(number != 0))
            return f"({ctype}){number & 0xFFFFFFFFFFFFFFFF:#x}ull"
        if kind == "f32" and re.fullmatch(r"-?\d+\.\d+", operand):
            return f"{operand}f"
        held = self.type_of(operand)
        if held is None:
            return f"({ctype})({self.address_of(operand)})"
        name = identifier(operand)
        if kind in OF_BITS:
            return name if held == ctype else f"{OF_BITS[kind]}({name})"
        if held in TO_BITS:
            return f"({ctype}){TO_BITS[held]}({name})"
        return name if held == ctype else f"({ctype}){name}"

    def address_of(self, symbol: str) -> str:
        """Number that a name stands for: a window address of shared memory, or a pointer."""
        if symbol in self.symbols:
            return f"(uint64_t){self.symbols[symbol]}"
        if symbol in self.shared:
            return f"own_window(t) + {self.shared[symbol]}"
        raise UnknownInstructionError(f"the symbol {symbol}")

    def write(self, register: str, value: str, kind: str) -> str:
        """C statement that puts a value of a PTX type into a register."""
        held = self.type_of(register)
        if register == "_":
            return f"(void)({value});"
        if held is None:
            raise UnknownInstructionError(f"the register {register}")
        name = identifier(register)
        if held in TO_BITS:
            wanted = "f32" if held == "float" else "f64"
            bits = f"{OF_BITS[wanted]}((uint{bits_of(wanted)}_t)({value}))"
            return f"{name} = {value if kind == wanted else bits};"
        if kind in OF_BITS:
            return f"{name} = ({held}){TO_BITS[C_TYPES[kind]]}({value});"
        if kind == "pred":
            return f"{name} = ({value}) != 0;"
        # Through the type itself, which wraps the value, or extends its sign.
        return f"{name} = ({held})({C_TYPES[kind]})({value});"

    def place(self, operand: str, parts: list[str], size: int, line: int) -> str:
        """C pointer to what `[operand]` names in the space that an instruction's parts name."""
        base, _, offset = operand.strip("[]").replace(" ", "").partition("+")
        at = int(offset, 0) if offset else 0
        if base in self.symbols:
            return f"({self.symbols[base]} + {at})"
        address = self.read(base, "u64")
        address = f"{address} + {at}" if at else address
        if any(part.startswith("shared") for part in parts):
            return f"shared_at(t, {address}, {size}, {line})"
        return f"aligned((void*)({address}), {size}, {line})"


def split_operands(text: str) -> list[str]:
    """Operands of an instruction; what stands in braces, brackets or parentheses is one."""
    found, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            found.append(current.strip())
            current = ""
        else:
            current += letter
    return [*found, current.strip()] if current.strip() else found


def bits_of(kind: str) -> int:
    return int(re.sub(r"\D", "", kind))


def elements(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{} ").split(",")]
