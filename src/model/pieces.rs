//! The pieces of a properties text: what lies between its pair ends.
//!
//! No name holds either separator, so that a piece ends at the next 0x02 whatever it holds, and its name at its first 0x01. A piece without a
//! name or a value counts as nothing; of two with one name the later counts.

use super::swar::eight;

const NAME_END: u8 = 1;
const PAIR_END: u8 = 2;

/// The values of several names, as they stand in the text, in one pass. Inlined, so that names are compared as constants.
#[inline]
pub(crate) fn values<'a, const N: usize>(text: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    let mut see = |piece: &'a [u8]| {
        let Some(&letter) = piece.first() else { return };
        for (name, slot) in names.iter().zip(&mut values) {
            if name.as_bytes().first() == Some(&letter)
                && let Some(value) = value(piece, name)
            {
                *slot = Some(value);
            }
        }
    };
    let mut from = 0;
    let (words, rest) = text.as_chunks::<8>();
    for (nth, word) in words.iter().enumerate() {
        let mut ends = pair_ends(u64::from_le_bytes(*word));
        while ends != 0 {
            let end = nth * 8 + ends.trailing_zeros() as usize / 8;
            see(&text[from..end]);
            from = end + 1;
            ends &= ends - 1;
        }
    }
    let rest_at = text.len() - rest.len();
    for end in rest_at..text.len() {
        if text[end] == PAIR_END {
            see(&text[from..end]);
            from = end + 1;
        }
    }
    see(&text[from..]);
    values
}

/// The value of a piece, if it has this name.
#[inline]
pub(crate) fn value<'a>(piece: &'a [u8], name: &str) -> Option<&'a [u8]> {
    match piece.strip_prefix(name.as_bytes()) {
        Some([NAME_END, value @ ..]) if !value.is_empty() => Some(value),
        _ => None,
    }
}

/// The pieces from the last to the first.
pub(crate) fn from_the_end(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let left = rest?;
        let end = memchr::memrchr(PAIR_END, left);
        rest = end.map(|end| &left[..end]);
        Some(&left[end.map_or(0, |end| end + 1)..])
    })
}

/// The high bit of each byte that ends a pair, and of no other.
fn pair_ends(word: u64) -> u64 {
    let low = eight(0x7F);
    let zero = word ^ eight(PAIR_END);
    !(((zero & low) + low) | zero | low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::PropertiesView;

    const NAMES: [&str; 3] = ["A", "BC", "B"];

    proptest! {
        #[test]
        fn pieces_are_read_as_the_pairs_of_a_view(
            text in prop::collection::vec(prop_oneof![Just(1u8), Just(2), Just(b'A'), Just(b'B'), Just(b'C'), Just(0x82), Just(0)], 0..64)
        ) {
            let view = PropertiesView::new(&text);
            let wanted = NAMES.map(|name| view.get_bytes(name));

            prop_assert_eq!(values(&text, NAMES), wanted);
            let last = NAMES.map(|name| from_the_end(&text).find_map(|piece| value(piece, name)));
            prop_assert_eq!(last, wanted);
        }
    }
}
