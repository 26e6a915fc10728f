//! Looking at the bytes of a segment: what begins at a position, and where sound records go on after damage.

use memchr::memmem;

use crate::{
    model::{PhysicalOffset, QueueId},
    mutation::Mutation,
    record::{Frame, RecordView, kind, layout::BLANK_BYTES_MIN},
};

/// A lost page leaves zeros from one multiple of this to another.
const SECTOR_BYTES: u64 = 512;
/// The bytes that both magics of a record begin with, and where they stand.
const MAGIC_START: [u8; 3] = [0xDA, 0xA3, 0x20];
const MAGIC_AT: usize = 4;

/// What begins at a position.
pub(super) enum Found<'a> {
    /// A record.
    Record(RecordView<'a>),
    /// The blank that ends a segment.
    SegmentEnd,
    /// Nothing that can be used: free space, a torn write or damage.
    Bad,
}

/// A record and where it lies.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    /// Its first byte.
    pub(super) position: PhysicalOffset,
    /// The record.
    pub(super) record: RecordView<'a>,
}

/// Tells what begins at `position`; `bytes` are the segment's from there on as far as they may be read, and `left` is how many the segment
/// has from there on.
///
/// `strict` also verifies the body and looks for zeros that a lost page would leave in topic or properties, which no checksum covers.
pub(super) fn look(bytes: &[u8], position: PhysicalOffset, left: u64, strict: bool) -> Found<'_> {
    if left < BLANK_BYTES_MIN as u64 {
        return Found::SegmentEnd;
    }
    match kind(bytes) {
        Frame::Blank { bytes } if u64::from(bytes) == left => Found::SegmentEnd,
        Frame::Record { .. } => match RecordView::parse(bytes) {
            Ok(record)
                if record.physical_offset() == position
                    && (!strict || is_sound(record) && !is_cut_short(record, bytes)) =>
            {
                Found::Record(record)
            }
            _ => Found::Bad,
        },
        _ => Found::Bad,
    }
}

/// Finds the next sound record behind the start of `bytes`, which begin at `position`; gives its distance.
pub(super) fn next_sound(bytes: &[u8], position: PhysicalOffset) -> Option<usize> {
    let mut from = MAGIC_AT + 1;
    while let Some(found) = memmem::find(bytes.get(from..)?, &MAGIC_START) {
        let distance = from + found - MAGIC_AT;
        let at = position.plus(distance as u64);
        if RecordView::parse(&bytes[distance..]).is_ok_and(|record| record.physical_offset() == at && is_sound(record))
        {
            return Some(distance);
        }
        from += found + 1;
    }
    None
}

fn is_sound(record: RecordView<'_>) -> bool {
    let properties = record.properties().as_bytes();
    let properties_at = record.end().0 - properties.len() as u64;
    // No topic has a NUL in its name.
    record.queue_id().0 < QueueId::COUNT_MAX
        && (record.body_is_sound() || Mutation::BodyUnchecked.is_on())
        && ((!record.topic().contains('\0') && !has_lost_page(properties, properties_at))
            || Mutation::PropertiesUnchecked.is_on())
}

/// Whether a write stopped within the properties of a record, which begins `bytes`: they end in zeros, and so it goes on behind them.
fn is_cut_short(record: RecordView<'_>, bytes: &[u8]) -> bool {
    let behind = &bytes[record.total_bytes() as usize..];
    !Mutation::PropertiesUnchecked.is_on()
        && record.properties().as_bytes().last() == Some(&0)
        && behind.iter().take(BLANK_BYTES_MIN).all(|&byte| byte == 0)
}

/// Whether `text`, which begins at byte `at` of the log, has a run of zeros whose two ends are sector borders or the ends of the text.
fn has_lost_page(text: &[u8], at: u64) -> bool {
    let is_border =
        |index: usize| index == 0 || index == text.len() || (at + index as u64).is_multiple_of(SECTOR_BYTES);
    let mut from = 0;
    while let Some(start) = text[from..].iter().position(|&byte| byte == 0).map(|found| from + found) {
        let end = text[start..].iter().position(|&byte| byte != 0).map_or(text.len(), |found| start + found);
        if is_border(start) && is_border(end) {
            return true;
        }
        from = end;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_between_sector_borders_are_a_lost_page_and_others_are_not() {
        let mut text = vec![b'x'; 2000];
        text[100] = 0;
        assert!(!has_lost_page(&text, 512 * 7 + 10), "a single zero is a text of its own kind");

        text[502..1014].fill(0);
        assert!(has_lost_page(&text, 512 * 7 + 10));
        assert!(!has_lost_page(&text, 512 * 7 + 11), "the same run one byte further on begins inside a sector");
    }
}
