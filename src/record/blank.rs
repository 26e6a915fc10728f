//! The blank that ends a segment.

use super::layout::MAGIC_BLANK;

/// The eight bytes to write where `left` bytes of a segment are left that the next record does not fit in; the rest may hold anything.
///
/// A record of L bytes fits only if at least L + [`BLANK_BYTES_MIN`](super::layout::BLANK_BYTES_MIN) bytes are left, hence `left` is never
/// less than eight.
pub fn blank(left: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&left.to_be_bytes());
    bytes[4..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    bytes
}
