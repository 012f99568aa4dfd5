"""PTX instructions as C statements: one function for each kind, and the table of them all.

What is not known here raises `UnknownInstructionError`: nothing is skipped but what changes no value.
"""

from __future__ import annotations

from collections.abc import Callable

from emulator.operands import C_TYPES, Function, UnknownInstructionError, bits_of, elements, identifier, split_operands

NOTHING = ("prefetch", "fence", "membar", "createpolicy", "griddepcontrol")
"""What changes no value here: one processor sees its own stores in order, and launches follow each other."""

RELATIONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
REDUCTIONS = {
    ("add", True): "kSum", ("add", False): "kSum", ("min", False): "kLeast", ("max", False): "kMost",
    ("min", True): "kLeastSigned", ("max", True): "kMostSigned", ("and", False): "kAnd", ("or", False): "kOr",
    ("xor", False): "kXor",
}  # fmt: skip
SHUFFLES = {"up": "kUp", "down": "kDown", "bfly": "kButterfly", "idx": "kIndex"}


# ---- instructions: each takes a function, the parts of an opcode, operands and the line, and gives C


def load(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4")), 1)
    size = bits_of(kind) // 8
    at = f.place(o[1], parts, size * count, line)
    first = ""
    if {"acquire", "relaxed"} & set(parts):  # what CTAs tell each other, asked for until it is there
        first = "poll(t); "
    elif "global" in parts and "cg" not in parts:  # past L1 is read what others have written: no row
        first = f"launch.read += {size * count}; "
    names = elements(o[0]) if count > 1 else [o[0]]
    ctype = C_TYPES[kind]
    copies = f"{ctype} v[{count}]; memcpy(v, {at}, sizeof v); "
    return "{ " + first + copies + " ".join(f.write(n, f"v[{i}]", kind) for i, n in enumerate(names)) + " }"


def store(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4")), 1)
    at = f.place(o[0], parts, bits_of(kind) // 8 * count, line)
    names = elements(o[1]) if count > 1 else [o[1]]
    values = ", ".join(f.read(n, kind) for n in names)
    return f"{{ const {C_TYPES[kind]} v[{count}] = {{{values}}}; memcpy({at}, v, sizeof v); }}"


def store_async(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    names = elements(o[1])
    values = ", ".join(f.read(n, kind) for n in names)
    size = bits_of(kind) // 8 * len(names)
    to, arrival = (f.read(x.strip("[] "), "u32") for x in (o[0], o[2]))
    sent = f"const {C_TYPES[kind]} v[{len(names)}] = {{{values}}};"
    return f"{{ {sent} store_async(t, {to}, v, {size}, {arrival}, {line}); }}"


def atomic(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind, returns = parts[-1], parts[0] == "atom"
    op = next(p for p in parts[1:] if p in ("add", "min", "max", "or", "and", "xor", "inc", "exch", "cas"))
    to, at, *values = o if returns else [None, *o]
    assert at is not None
    a = f.read(values[0], kind)
    new = {
        "add": f"was + {a}", "or": f"was | {a}", "and": f"was & {a}", "xor": f"was ^ {a}", "exch": a,
        "min": f"{a} < was ? {a} : was", "max": f"{a} > was ? {a} : was", "inc": f"was >= {a} ? 0 : was + 1",
    }  # fmt: skip
    if op == "cas":
        new["cas"] = f"was == {a} ? {f.read(values[1], kind)} : was"
    ctype = C_TYPES[kind]
    result = f.write(to, "was", kind) if to else ""
    pointer = f.place(at, parts, bits_of(kind) // 8, line)
    return f"{{ {ctype}* p = ({ctype}*){pointer}; const {ctype} was = *p; *p = {new[op]}; {result} }}"


def compare(f: Function, parts: list[str], o: list[str], line: int) -> str:
    relation, kind = parts[1], parts[-1]
    a, b = f.read(o[1], kind), f.read(o[2], kind)
    if relation in RELATIONS:
        value = f"{a} {RELATIONS[relation]} {b}"
    elif relation in UNORDERED:
        value = f"isnan({a}) || isnan({b}) || {a} {UNORDERED[relation]} {b}"
    elif relation in ("nan", "num"):
        value = f"{'' if relation == 'nan' else '!'}(isnan({a}) || isnan({b}))"
    else:
        raise UnknownInstructionError(".".join(parts))
    if kind == "f32" and relation == "ne":
        value = f"!isnan({a}) && !isnan({b}) && {a} != {b}"
    if len(parts) == 4:
        joined = {"and": "&&", "or": "||", "xor": "^"}[parts[2]]
        value = f"({value}) {joined} {f.read(o[3], 'pred')}"
    if "|" in o[0]:
        raise UnknownInstructionError(".".join(parts) + " with two results")
    return f.write(o[0], value, "pred")


def set_by(f: Function, parts: list[str], o: list[str], line: int) -> str:
    if parts[-1] == "f32":
        known(parts, "ge", "gt", "f32")
        return f.write(o[0], f"{f.read(o[1], 'f32')} {RELATIONS[parts[1]]} {f.read(o[2], 'f32')} ? 1.0f : 0.0f", "f32")
    known(parts, "nan", "ge", "eq", "u32")
    test, bfloat = ("nan", "ge", "eq").index(parts[1]), int(parts[-1] == "bf16x2")
    return f.write(o[0], f"test_halves({f.read(o[1], 'u32')}, {f.read(o[2], 'u32')}, {test}, {bfloat})", "u32")


def move(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    if o[1].startswith("{"):
        names = elements(o[1])
        each = bits_of(kind) // len(names)
        wide = "u128" if kind == "b128" else "uint64_t"
        terms = " | ".join(f"({wide}){f.read(n, f'b{each}')} << {each * i}" for i, n in enumerate(names))
        return f.write(o[0], terms, kind)
    if o[0].startswith("{"):
        names = elements(o[0])
        each = bits_of(kind) // len(names)
        whole = f.read(o[1], kind)
        return " ".join(f.write(n, f"{whole} >> {each * i}", f"b{each}") for i, n in enumerate(names))
    return f.write(o[0], f.read(o[1], kind), kind)


def shift(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind, by = parts[-1], f.read(o[2], "u32")
    bits = bits_of(kind)
    a = f.read(o[1], kind)
    if parts[0] == "shr" and kind[0] == "s":
        return f.write(o[0], f"{a} >> ({by} > {bits - 1} ? {bits - 1} : {by})", kind)
    return f.write(o[0], f"{by} > {bits - 1} ? 0 : {a} {'<<' if parts[0] == 'shl' else '>>'} {by}", kind)


def multiply(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    a, b = f.read(o[1], kind), f.read(o[2], kind)
    if kind == "f32":
        known(parts, "rn", "rp")
        return f.write(o[0], f"mul_up({a}, {b})" if "rp" in parts else f"{a} * {b}", kind)
    if kind == "f64":
        known(parts, "rn")
        return f.write(o[0], f"{a} * {b}", kind)
    known(parts, "lo", "hi", "wide")
    bits, signed = bits_of(kind), kind[0] == "s"
    wide = f"{'' if signed else 'u'}int{2 * bits}_t" if bits < 64 else "__int128" if signed else "u128"
    product = f"({wide}){a} * ({wide}){b}"
    if "wide" in parts:
        kind = f"{kind[0]}{2 * bits}"
    value = f"({product}) >> {bits}" if "hi" in parts else product
    if parts[0] == "mad":
        value = f"({value}) + {f.read(o[3], kind)}"
    return f.write(o[0], value, kind)


def convert(f: Function, parts: list[str], o: list[str], line: int) -> str:
    to, of = parts[-2], parts[-1]
    rounding = list(parts[1:-2])
    if to == "f16x2":
        return f.write(
            o[0], f"(uint32_t)float_to_half({f.read(o[1], 'f32')}) << 16 | float_to_half({f.read(o[2], 'f32')})", "u32"
        )
    if to == "f16":
        return f.write(o[0], f"float_to_half({f.read(o[1], 'f32')})", "u16")
    if of == "f16":
        return f.write(o[0], f"half_to_float({f.read(o[1], 'u16')})", "f32")
    a = f.read(o[1], of)
    if (to, of) == ("f64", "f32") or (to == "f64" and of[0] in "su" and rounding == ["rn"]):
        return f.write(o[0], f"(double){a}", "f64")
    if (to, of, rounding) == ("f32", "f64", ["rn"]):
        return f.write(o[0], f"(float){a}", "f32")
    if to == of == "f32":
        made = {"sat": "saturate", "rmi": "floorf", "rpi": "ceilf", "rni": "rintf", "rzi": "truncf"}[rounding[0]]
        return f.write(o[0], f"{made}({a})", "f32")
    if of == "f32":
        made = {"rzi": "", "rni": "rintf", "rmi": "floorf", "rpi": "ceilf"}[rounding[0]]
        if to not in ("s32", "u32"):
            raise UnknownInstructionError(".".join(parts))
        return f.write(o[0], f"to_{to}({made}({a}))", to)
    if to == "f32":
        if rounding != ["rn"]:
            raise UnknownInstructionError(".".join(parts))
        return f.write(o[0], f"(float){a}", "f32")
    if (to, of) == ("u64", "f64"):
        return f.write(o[0], f"(uint64_t){ {'rzi': 'trunc', 'rpi': 'ceil'}[rounding[0]] }({a})", "u64")
    if rounding:
        raise UnknownInstructionError(".".join(parts))
    return f.write(o[0], f"({C_TYPES[to]}){a}", to)


def shuffle(f: Function, parts: list[str], o: list[str], line: int) -> str:
    to, _, found = o[0].partition("|")
    value, b, aux, mask = (f.read(x, "u32") for x in o[1:])
    done = f"const uint32_t v = together(t, {SHUFFLES[parts[2]]}, {value}, {b}, {aux}, {mask}, {line});"
    flag = f.write(found, "t->found", "pred") if found else ""
    return f"{{ {done} {f.write(to, 'v', 'u32')} {flag} }}"


def vote(f: Function, parts: list[str], o: list[str], line: int) -> str:
    op = {"any": "kAny", "all": "kAll", "ballot": "kBallot"}[parts[2]]
    asked = f"together(t, {op}, {f.read(o[1], 'pred')}, 0, 0, {f.read(o[2], 'u32')}, {line})"
    return f.write(o[0], asked, "u32" if op == "kBallot" else "pred")


def reduce_warp(f: Function, parts: list[str], o: list[str], line: int) -> str:
    if parts[-1] not in ("u32", "s32", "b32"):
        raise UnknownInstructionError(".".join(parts))
    op = REDUCTIONS[parts[2], parts[-1] == "s32"]
    return f.write(o[0], f"together(t, {op}, {f.read(o[1], 'u32')}, 0, 0, {f.read(o[2], 'u32')}, {line})", "u32")


def barrier(f: Function, parts: list[str], o: list[str], line: int) -> str:
    name = ".".join(parts)
    if name.startswith("bar.warp"):
        return f"together(t, kMeet, 0, 0, 0, {f.read(o[0], 'u32')}, {line});"
    if name.startswith("barrier.cluster"):
        return "cluster_arrive(t);" if "arrive" in parts else "cluster_wait(t);"
    number, expected = f.read(o[0], "u32"), f.read(o[1], "u32") if len(o) > 1 else "0"
    if name in ("bar.sync", "barrier.sync", "barrier.cta.sync"):
        return f"barrier_sync(t, {number}, {expected}, {line});"
    if name in ("barrier.cta.arrive", "bar.arrive"):
        return f"barrier_arrive(t, {number}, {expected});"
    raise UnknownInstructionError(name)


def copy_async(f: Function, parts: list[str], o: list[str], line: int) -> str:
    if "commit_group" in parts:
        return "++t->group;"
    if "wait_all" in parts:
        return "copies_land(t);"
    if "wait_group" in parts:
        return f"copies_wait(t, {f.read(o[0], 'u32')});"
    if "bulk" in parts:
        to, source, size, arrival = o
        addresses = f"{f.read(to.strip('[]'), 'u64')}, {f.read(source.strip('[]'), 'u64')}"
        return f"copy_bulk(t, {addresses}, {f.read(size, 'u32')}, {f.read(arrival.strip('[]'), 'u64')}, {line});"
    size, source = int(o[2]), f.read(o[1].strip("[]"), "u64")
    return f"copy_async(t, {f.place(o[0], ['shared'], size, line)}, (uint8_t*){source}, {size}, {line});"


def arrivals(f: Function, parts: list[str], o: list[str], line: int) -> str:
    if "init" in parts:
        return f"arrival_init({f.place(o[0], ['shared'], 8, line)}, {f.read(o[1], 'u32')});"
    if "expect_tx" in parts:
        *_, at, size = o
        arrives = int("arrive" in parts)
        return f"arrival_expect({f.place(at, ['shared'], 8, line)}, {f.read(size, 'u32')}, {arrives}, {line});"
    if "try_wait" in parts and "parity" in parts:
        return f.write(o[0], f"arrival_passed(t, {f.place(o[1], ['shared'], 8, line)}, {f.read(o[2], 'u32')})", "pred")
    raise UnknownInstructionError(".".join(parts))


def map_address(f: Function, parts: list[str], o: list[str], line: int) -> str:
    rank = f.read(o[2], "u32")
    if "shared::cluster" in parts:
        return f.write(o[0], f"shared_in_rank(t, {f.read(o[1], 'u32')}, {rank})", "u32")
    return f.write(o[0], f"generic_in_rank(t, {f.read(o[1], 'u64')}, {rank}, {line})", "u64")


def to_generic(f: Function, parts: list[str], o: list[str], line: int) -> str:
    if parts[1] == "to":
        return f.write(o[0], f.read(o[1], "u64"), "u64")
    value = f.read(o[1], "u64")
    return f.write(o[0], f"generic_of_shared(t, {value}, {line})" if parts[1] == "shared" else value, "u64")


def known(parts: list[str], *modifiers: str) -> None:
    """Refuse an instruction with other modifiers than these between its name and its type."""
    if set(parts[1:-1]) - set(modifiers):
        raise UnknownInstructionError(".".join(parts))


def simple(template: str, form: str | None = None, kind: str = "u32") -> Callable[..., str]:
    """An instruction that is one expression of its operands, all of one type: its own, or that of its one `form`."""

    def made(f: Function, parts: list[str], o: list[str], line: int) -> str:
        if form not in (None, ".".join(parts)):
            raise UnknownInstructionError(".".join(parts))
        known(parts, *(form or "approx.rn.full").split("."))
        own = kind if form else parts[-1]
        return f.write(o[0], template.format(*(f.read(x, own) for x in o[1:])), own)

    return made


def extreme(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1] if parts[-1] != "relu" else parts[-2]
    nan = "NaN" in parts
    known(parts, kind, "NaN")
    a, b = (f.read(x, kind if "x2" not in kind else "u32") for x in o[1:])
    if nan and kind in ("f32", "f16x2", "bf16x2") and parts[0] == "max":
        made = "greater_or_nan(" if kind == "f32" else f"greater_or_nan_halves({int(kind[0] == 'b')}, "
        return f.write(o[0], f"{made}{a}, {b})", "f32" if kind == "f32" else "u32")
    if nan:
        raise UnknownInstructionError(".".join(parts))
    if kind == "bf16x2" and parts[0] == "max":
        return f.write(o[0], f"greater_halves({a}, {b})", "u32")
    if kind == "s16x2":
        return f.write(o[0], f"min_halves_relu({a}, {b})", "u32")
    if kind == "f32":
        return f.write(o[0], f"number_of({a}, {b}, {int(parts[0] == 'min')})", kind)
    sign = "<" if parts[0] == "min" else ">"
    value = f"{a} {sign} {b} ? {a} : {b}"
    if "relu" in parts:
        value = f"({value}) < 0 ? 0 : ({value})"
    return f.write(o[0], value, kind)


def add(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    if kind == "s16x2":
        return f.write(o[0], f"add_halves({f.read(o[1], 'u32')}, {f.read(o[2], 'u32')})", "u32")
    known(parts, "rn")
    unsigned = kind if kind in ("f32", "f64") else f"u{bits_of(kind)}"
    sign = "+" if parts[0] == "add" else "-"
    return f.write(o[0], f"{f.read(o[1], unsigned)} {sign} {f.read(o[2], unsigned)}", unsigned)


def fused(f: Function, parts: list[str], o: list[str], line: int) -> str:
    known(parts, "rn", "rm")
    made = {"rn": "fmaf", "rm": "fma_down"}[parts[1]]
    return f.write(o[0], f"{made}({', '.join(f.read(x, 'f32') for x in o[1:])})", "f32")


def select(f: Function, parts: list[str], o: list[str], line: int) -> str:
    a, b = f.read(o[1], parts[-1]), f.read(o[2], parts[-1])
    return f.write(o[0], f"{f.read(o[3], 'pred')} ? {a} : {b}", parts[-1])


def logic(sign: str) -> Callable[[Function, list[str], list[str], int], str]:
    return simple(f"{{}} {sign} {{}}")


def complement(f: Function, parts: list[str], o: list[str], line: int) -> str:
    sign = "!" if parts[-1] == "pred" else "~"
    return f.write(o[0], f"{sign}{f.read(o[1], parts[-1])}", parts[-1])


def absolute(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    known(parts)
    a = f.read(o[1], kind)
    return f.write(o[0], f"fabsf({a})" if kind == "f32" else f"{a} < 0 ? -{a} : {a}", kind)


def insert(f: Function, parts: list[str], o: list[str], line: int) -> str:
    kind = parts[-1]
    a, b = f.read(o[1], kind), f.read(o[2], kind)
    at, length = f.read(o[3], "u32"), f.read(o[4], "u32")
    return f.write(o[0], f"insert_field({a}, {b}, {at}, {length}, {bits_of(kind)})", kind)


def count_bits(f: Function, parts: list[str], o: list[str], line: int) -> str:
    a = f.read(o[1], parts[-1])
    wide = "ll" if bits_of(parts[-1]) == 64 else ""
    value = {
        "popc": f"__builtin_popcount{wide}({a})",
        "clz": f"{a} ? __builtin_clz{wide}({a}) : {bits_of(parts[-1])}",
        "brev": f"reverse_bits({a})",
        "bfind": f"find_shift({a})",
    }[parts[0]]
    if (parts[0] in ("brev", "bfind") and bits_of(parts[-1]) != 32) or (
        parts[0] == "bfind" and "shiftamt" not in parts
    ):
        raise UnknownInstructionError(".".join(parts))
    return f.write(o[0], value, "u32")


INSTRUCTIONS: dict[str, Callable[[Function, list[str], list[str], int], str]] = {
    "ld": load, "st": store, "atom": atomic, "red": atomic, "setp": compare, "mov": move, "shl": shift, "shr": shift,
    "mul": multiply, "mad": multiply, "cvt": convert, "shfl": shuffle, "vote": vote, "redux": reduce_warp,
    "bar": barrier, "barrier": barrier, "cp": copy_async, "mbarrier": arrivals, "mapa": map_address, "cvta": to_generic,
    "min": extreme, "max": extreme, "add": add, "sub": add, "fma": fused, "selp": select, "not": complement,
    "and": logic("&"), "or": logic("|"), "xor": logic("^"), "bfi": insert,
    "popc": count_bits, "clz": count_bits, "brev": count_bits, "bfind": count_bits,
    "neg": simple("-{}"), "abs": absolute, "prmt": simple("permute({}, {}, {})", "prmt.b32"),
    "div": simple("{} / {}"), "rem": simple("{} % {}"), "rsqrt": simple("1.0f / sqrtf({})", "rsqrt.approx.f32", "f32"),
    "sqrt": simple("sqrtf({})", "sqrt.rn.f32", "f32"), "set": set_by,
    "nanosleep": lambda f, parts, o, line: "poll(t);",
    "activemask": lambda f, parts, o, line: f.write(o[0], f"active(t, {line})", "u32"),
    "match": lambda f, parts, o, line: f.write(
        o[0], f"together(t, kMatch, {f.read(o[1], 'u32')}, 0, 0, {f.read(o[2], 'u32')}, {line})", "u32"
    ),
    "ret": lambda f, parts, o, line: "return;",
    "exit": lambda f, parts, o, line: "return;",
    "trap": lambda f, parts, o, line: f'stop({line}, "trap");',
}  # fmt: skip


def instruction(f: Function, text: str, line: int) -> str:
    """One instruction, without its semicolon, as C."""
    guard = ""
    if text.startswith("@"):
        guard, text = text.split(None, 1)
        guard = f"if ({f.read(guard[1:], 'pred')}) "
    opcode, _, rest = text.partition(" ")
    parts, operands = opcode.split("."), split_operands(rest)
    if parts[0] in NOTHING:
        return f.write(operands[0], "0", "u64") if parts[0] == "createpolicy" else ";"
    if parts[0] == "bra":
        label, at = f.label(operands[0])
        back = "if (--t->fuel <= 0) preempt(t); " if at < line else ""
        return f"{guard}{{ {back}goto {label}; }}"
    if parts[0] == "call":
        return guard + call(operands)
    if parts[0] == "st" and "async" in parts:
        return guard + store_async(f, parts, operands, line)
    if parts[0] not in INSTRUCTIONS:
        raise UnknownInstructionError(text)
    return guard + INSTRUCTIONS[parts[0]](f, parts, operands, line)


def call(operands: list[str]) -> str:
    results = operands.pop(0).strip("() ") if operands[0].startswith("(") else "NULL"
    name, *given = operands
    arguments = list(split_operands(given[0].strip("() "))) if given else []
    return f"{identifier(name)}(t, {', '.join([results, *map(identifier, arguments)])});"
