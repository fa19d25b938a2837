"""Rules for random names."""

import uuid

from ductile.ids import random_id


def test_a_random_id_is_a_random_uuid() -> None:
    """Other programs read it as what it is, and take its text for the canonical one."""
    made = [random_id() for _ in range(1000)]
    read = [uuid.UUID(each) for each in made]
    assert {(each.version, each.variant) for each in read} == {(4, uuid.RFC_4122)}
    assert [str(each) for each in read] == made


def test_every_open_bit_of_a_random_id_is_random() -> None:
    """122 of them: neither the version nor the variant takes more than its own."""
    some = [uuid.UUID(random_id()).int for _ in range(1000)]
    ever, always = 0, (1 << 128) - 1
    for each in some:
        ever, always = ever | each, always & each
    assert (ever ^ always).bit_count() == 122
    assert len(set(some)) == len(some)
