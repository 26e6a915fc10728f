//! The pieces of a properties text: what lies between its pair ends.
//!
//! No name holds either separator, so that a piece ends at the next 0x02 whatever it holds, and its name at its first 0x01. A piece without a
//! name or a value counts as nothing; of two with one name the later counts.

use super::swar::{eight, find, zeros};

pub(super) const NAME_END: u8 = 1;
pub(super) const PAIR_END: u8 = 2;

/// Shows where each piece begins and ends, also the one behind the last pair end, unless that is empty.
#[inline]
pub(super) fn each(text: &[u8], mut see: impl FnMut(usize, usize)) {
    let mut from = 0;
    let mut ended = |end| {
        see(from, end);
        from = end + 1;
    };
    let (words, rest) = text.as_chunks::<8>();
    for (nth, word) in words.iter().enumerate() {
        let mut ends = pair_ends(u64::from_le_bytes(*word));
        while ends != 0 {
            ended(nth * 8 + ends.trailing_zeros() as usize / 8);
            ends &= ends - 1;
        }
    }
    let rest_at = text.len() - rest.len();
    rest.iter().enumerate().filter(|(_, byte)| **byte == PAIR_END).for_each(|(nth, _)| ended(rest_at + nth));
    if from < text.len() {
        see(from, text.len());
    }
}

/// Where the name of a piece ends, if it has one.
pub(super) fn name_end(piece: &[u8]) -> Option<usize> {
    find(piece, |bytes| zeros(bytes ^ eight(NAME_END)), |byte| byte == NAME_END)
}

/// The values of several names, as they stand in the text, in one pass. Inlined, so that names are compared as constants.
#[inline]
pub(crate) fn values<'a, const N: usize>(text: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    each(text, |from, end| {
        let piece = &text[from..end];
        let Some(&letter) = piece.first() else { return };
        for (name, slot) in names.iter().zip(&mut values) {
            if name.as_bytes().first() == Some(&letter)
                && let Some(value) = value(piece, name)
            {
                *slot = Some(value);
            }
        }
    });
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
    use crate::model::{Properties, PropertiesView};

    const NAMES: [&str; 3] = ["A", "BC", "B"];

    proptest! {
        #[test]
        fn pieces_are_read_as_the_pairs_of_a_view(
            text in prop::collection::vec(prop_oneof![Just(1u8), Just(2), Just(b'A'), Just(b'B'), Just(b'C'), Just(0x82), Just(0)], 0..64)
        ) {
            let view = PropertiesView::new(&text);
            let wanted = NAMES.map(|name| {
                view.iter().filter(|(found, _)| *found == name.as_bytes()).last().map(|(_, value)| value)
            });
            let owned = Properties::from_text(&text[..]);

            prop_assert_eq!(values(&text, NAMES), wanted);
            prop_assert_eq!(owned.find(NAMES), wanted);
            let last = NAMES.map(|name| from_the_end(&text).find_map(|piece| value(piece, name)));
            prop_assert_eq!(last, wanted);
        }
    }
}
