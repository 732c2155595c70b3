"""One spelling for conditions that mean the same, so that another one is not charged again.

Every rule holds for TRUE, FALSE and NULL (Kleene's three values), row by row:

- AND and OR: operands in one order, each once, without TRUE and ``1 = 1`` in AND, and FALSE in OR;
- NOT stands before no connective, comparison or NOT (De Morgan);
- ``x = 1 OR x = 2`` is ``x IN (1, 2)``, ``x <> 1 AND x <> 2`` is ``NOT (x IN (1, 2))``;
- a literal stands on the right of a comparison, and of two other operands of ``=``, ``<``, ``+``, ``*``,
  ``least`` and ``greatest`` the order is that of their texts.

Nothing is rewritten that hangs on a type: a list of whole numbers and one with fractions compare a
column of whole numbers in two ways, so they stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from dpflow.tables.language.nodes import Node

#: Comparisons by what they are with their sides exchanged, and by what they are under NOT, also for NULL.
_EXCHANGED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_OPPOSITE = {"AND": "OR", "OR": "AND"}
_LITERALS = ("number", "text", "truth")
#: Operators whose value is a truth value whatever their operands are.
_TRUTHS = {*_EXCHANGED, "AND", "OR", "NOT", "IN", "LIKE", "IS NULL"}
#: Of two operands, in either order.
_COMMUTATIVE = ("+", "*", "least", "greatest")
#: Whole numbers beyond these compare as DOUBLEs.
_INT64 = 2**63


def rewrite_node(node: Node) -> Node:
    """A node in its one spelling, whose operands are in theirs.

    Raises `PlanRefused` if its text becomes longer than what is read.
    """
    if node.op in _OPPOSITE:
        return _connect(node.op, merge_operands(node.op, node.args))
    if node.op == "NOT":
        return _negate(node.args[0])
    if node.op == "IN" and len(node.args) == 2:
        return rewrite_node(Node("=", node.args))
    if node.op in _EXCHANGED:
        left, right = node.args
        literals = [one.op in _LITERALS for one in node.args]
        if literals == [True, False] or (literals == [False, False] and str(left) > str(right)):
            return Node(_EXCHANGED[node.op], (right, left))
    if node.op in _COMMUTATIVE and len(node.args) == 2:
        return Node(node.op, tuple(sorted(node.args, key=str)))
    return node


def merge_operands(op: str, operands: Iterable[Node]) -> list[Node]:
    """What a connective of operands in their one spelling connects, in order, each once; none if nothing
    is left of it.
    """
    kept: dict[str, Node] = {}
    listed: dict[tuple[str, str], tuple[Node, dict[str, Node]]] = {}
    for node in split_operands(op, operands):
        values = _list_values(node, op)
        if values is not None:
            subject, kind, literals = values
            listed.setdefault((str(subject), kind), (subject, {}))[1].update(literals)
        elif not _is_neutral(node, op):
            kept[str(node)] = node
    for subject, literals in listed.values():
        node = _write_list(subject, list(literals.values()), op)
        kept[str(node)] = node
    return [kept[text] for text in sorted(kept)]


def split_operands(op: str, nodes: Iterable[Node]) -> Iterator[Node]:
    """The operands of nested connectives of one kind, from left to right."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if node.op == op:
            waiting += reversed(node.args)
        else:
            yield node


def _is_neutral(node: Node, op: str) -> bool:
    """Whether an operand changes nothing: FALSE in OR; TRUE in AND, or a literal equal to itself, such as
    ``1 = 1``.
    """
    if node.op == "truth":
        return bool(node.args[0]) == (op == "AND")
    equal = node.op == "=" and node.args[0] == node.args[1] and node.args[0].op in _LITERALS
    return equal and op == "AND"


def _connect(op: str, nodes: list[Node]) -> Node:
    """Operands as a tree of logarithmic depth; alone if it is one."""
    if not nodes:
        return Node("truth", (op == "AND",))
    if len(nodes) == 1 and nodes[0].op not in (*_TRUTHS, "truth"):
        # Of what may be no truth value, the connective makes one, or the source's types refuse it.
        nodes *= 2
    while len(nodes) > 1:
        pairs = [Node(op, (a, b)) for a, b in zip(nodes[::2], nodes[1::2])]
        nodes = [*pairs, *nodes[2 * len(pairs) :]]
    return nodes[0]


def _negate(node: Node) -> Node:
    """NOT of a node in its one spelling."""
    if node.op in _NEGATED:
        return Node(_NEGATED[node.op], node.args)
    if node.op in _OPPOSITE:
        op = _OPPOSITE[node.op]
        return _connect(op, merge_operands(op, map(_negate, split_operands(node.op, [node]))))
    if node.op == "NOT" and node.args[0].op in _TRUTHS:
        inner: Node = node.args[0]
        return inner
    if node.op == "truth":
        return Node("truth", (not node.args[0],))
    return Node("NOT", (node,))


def _list_values(node: Node, op: str) -> tuple[Node, str, dict[str, Node]] | None:
    """What an operand compares with which literals of one kind: equal to one of them, under OR; to none of
    them, under AND.
    """
    equal, lists = ("=", node) if op == "OR" else ("<>", node.args[0] if node.op == "NOT" else node)
    if node.op == equal:
        lists = node
    elif lists.op != "IN" or (lists is node) != (op == "OR"):
        return None
    subject, *literals = lists.args
    kinds = {_kind_of(one) for one in literals}
    if subject.op in _LITERALS or len(kinds) != 1 or not all(kinds):
        return None
    return subject, kinds.pop(), {str(one): one for one in literals}


def _kind_of(literal: Node) -> str:
    """What a literal is compared as; empty for what is none."""
    if literal.op == "number":
        number: Decimal = literal.args[0]
        whole = number == number.to_integral_value() and -_INT64 <= number < _INT64
        return "whole" if whole else "number"
    return literal.op if literal.op in _LITERALS else ""


def _write_list(subject: Node, literals: list[Node], op: str) -> Node:
    if len(literals) == 1:
        return Node("=" if op == "OR" else "<>", (subject, literals[0]))
    values = Node("IN", (subject, *sorted(literals, key=str)))
    return values if op == "OR" else Node("NOT", (values,))
