//! Looking at eight bytes at once: for texts so short that a search by wider registers does not pay.

/// A byte in each of eight.
pub(crate) const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The high bit of each byte that is zero; also of some behind the first of them.
pub(crate) fn zeros(bytes: u64) -> u64 {
    bytes.wrapping_sub(eight(1)) & !bytes & eight(0x80)
}

/// Index of the first byte for which `is_wanted` says so; `marks` sets the high bit of such bytes among eight, and perhaps of some behind the first.
pub(crate) fn find(bytes: &[u8], marks: impl Fn(u64) -> u64, is_wanted: impl Fn(u8) -> bool) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (nth, chunk) in chunks.iter().enumerate() {
        let marked = marks(u64::from_le_bytes(*chunk));
        if marked != 0 {
            return Some(nth * 8 + marked.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|byte| is_wanted(*byte)).map(|at| chunks.len() * 8 + at)
}
