//! What a consumer group wants of a topic.

use crate::model::{Topic, java_hash};

/// The expression type of a filter by tags.
pub(crate) const TAG: &str = "TAG";
/// The expression that lets everything pass.
pub(crate) const ALL: &str = "*";
/// Most tags of one subscription.
const TAGS_MAX: usize = 4096;

/// A subscription: a topic and the tags wanted of it.
///
/// Messages are matched by the hash of their tag, as it stands in the consume queue; clients compare the text again. Hashes are our own
/// (Java's `String.hashCode`): Go clients compute theirs over UTF-8 bytes.
///
/// Source: Apache RocketMQ, `SubscriptionData`, `FilterAPI`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscription {
    /// The topic.
    pub(crate) topic: Topic,
    /// The expression as the client wrote it.
    pub(crate) expression: String,
    /// The tags, in order of the text; empty: all messages.
    pub(crate) tags: Vec<String>,
    /// `TAG`, or a type that is not served.
    pub(crate) expression_type: String,
    /// Grows with each change made by the client.
    pub(crate) version: i64,
    codes: Vec<i64>,
}

/// An expression that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubscriptionError {
    /// The text has separators, but no tag.
    #[error("the expression {0:?} holds no tag")]
    NoTag(String),
    /// More tags than one subscription may have.
    #[error("{found} tags, more than {TAGS_MAX}")]
    TooMany {
        /// How many.
        found: usize,
    },
}

impl Subscription {
    /// Reads an expression: `*`, empty, or tags separated by `||`.
    ///
    /// # Errors
    /// See [`SubscriptionError`].
    pub(crate) fn parse(topic: Topic, expression: &str, version: i64) -> Result<Self, SubscriptionError> {
        let tags: Vec<String> = if expression.is_empty() || expression.trim() == ALL {
            Vec::new()
        } else {
            let tags: Vec<_> =
                expression.split("||").map(str::trim).filter(|tag| !tag.is_empty()).map(String::from).collect();
            if tags.is_empty() {
                return Err(SubscriptionError::NoTag(expression.into()));
            }
            tags
        };
        Self::with_tags(topic, expression, tags, TAG, version)
    }

    /// A subscription as a heartbeat announces it: the tags already taken apart.
    ///
    /// # Errors
    /// [`SubscriptionError::TooMany`].
    pub(crate) fn with_tags(
        topic: Topic,
        expression: &str,
        tags: Vec<String>,
        expression_type: &str,
        version: i64,
    ) -> Result<Self, SubscriptionError> {
        if tags.len() > TAGS_MAX {
            return Err(SubscriptionError::TooMany { found: tags.len() });
        }
        let mut codes: Vec<i64> = tags.iter().map(|tag| i64::from(java_hash(tag))).collect();
        codes.sort_unstable();
        codes.dedup();
        let expression_type = if expression_type.is_empty() { TAG } else { expression_type };
        Ok(Self { topic, expression: expression.into(), tags, expression_type: expression_type.into(), version, codes })
    }

    /// Whether a message with this tag code is wanted.
    pub(crate) fn wants(&self, tag_code: i64) -> bool {
        self.codes.is_empty() || self.codes.binary_search(&tag_code).is_ok()
    }

    /// Whether it is a filter by tags, the only one served.
    pub(crate) fn is_by_tag(&self) -> bool {
        self.expression_type == TAG
    }

    /// The hashes of the tags, as Java clients write them.
    pub(crate) fn code_set(&self) -> impl Iterator<Item = i64> {
        self.codes.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(expression: &str) -> Subscription {
        Subscription::parse("T".into(), expression, 1).unwrap()
    }

    #[test]
    fn remoting_66_tags_separated_by_bars_let_only_their_messages_pass() {
        let subscription = parsed(" TagA || TagB||");

        assert!(subscription.wants(i64::from(java_hash("TagA"))));
        assert!(subscription.wants(i64::from(java_hash("TagB"))));
        assert!(!subscription.wants(i64::from(java_hash("TagC"))));
        assert!(!subscription.wants(0), "a message without a tag");
    }

    #[test]
    fn a_star_or_nothing_lets_everything_pass() {
        assert!(parsed("*").wants(7) && parsed("").wants(0));
    }

    #[test]
    fn remoting_66_tags_that_are_not_ascii_are_matched_by_our_own_hash() {
        let subscription = Subscription::with_tags("T".into(), "订单", vec!["订单".into()], "TAG", 1).unwrap();

        assert!(subscription.wants(1_129_459));
    }

    #[test]
    fn an_expression_of_separators_alone_is_refused() {
        assert_eq!(Subscription::parse("T".into(), "||", 0), Err(SubscriptionError::NoTag("||".into())));
    }
}
