//! Connected consumers by group, and what their groups subscribe to.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    Subscription,
    clients::{Client, Clients, Member},
};
use crate::{
    model::Topic,
    protocol::{
        Command, RequestCode,
        body::{ConsumeFromWhere, ConsumeType, MessageModel},
        header::ConsumerGroupHeader,
    },
};

/// Who is connected as a consumer.
///
/// Subscriptions belong to the group: the last heartbeat wins, all members are expected to subscribe to the same. A group without members is
/// forgotten.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    state: Mutex<State>,
}

/// How a group consumes, in the words of its last heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GroupKind {
    /// How it gets its messages.
    pub(crate) consume_type: ConsumeType,
    /// Whether its members share the messages.
    pub(crate) message_model: MessageModel,
    /// Where a consumer without a stored offset begins.
    pub(crate) consume_from_where: ConsumeFromWhere,
}

/// A group with members.
#[derive(Debug, Clone)]
pub(crate) struct ConnectedGroup {
    /// How it consumes.
    pub(crate) kind: GroupKind,
    /// Its members.
    pub(crate) members: Vec<Member>,
    /// Its subscriptions.
    pub(crate) subscriptions: Vec<Arc<Subscription>>,
}

#[derive(Debug, Default)]
struct State {
    clients: Clients,
    groups: HashMap<Arc<str>, Group>,
}

#[derive(Debug, Default)]
struct Group {
    kind: GroupKind,
    subscriptions: HashMap<Topic, Arc<Subscription>>,
}

impl Group {
    /// Takes over the subscriptions of a heartbeat; says whether that changed anything.
    fn subscribe(&mut self, subscriptions: Vec<Subscription>) -> bool {
        let wanted: HashSet<Topic> = subscriptions.iter().map(|subscription| subscription.topic.clone()).collect();
        let before = self.subscriptions.len();
        self.subscriptions.retain(|topic, _| wanted.contains(topic));
        let mut changed = self.subscriptions.len() < before;
        for subscription in subscriptions {
            match self.subscriptions.get(&subscription.topic) {
                Some(known)
                    if known.version >= subscription.version
                        && known.expression_type == subscription.expression_type => {}
                known => {
                    changed |= known.is_none_or(|known| **known != subscription);
                    self.subscriptions.insert(subscription.topic.clone(), Arc::new(subscription));
                }
            }
        }
        changed
    }
}

impl Consumers {
    /// Notes a heartbeat; says whether members or subscriptions of the group changed, so that it has to be told. `None`: there are already
    /// `groups_max` other groups, and this one was not taken.
    pub(crate) fn heard(
        &self,
        group: &str,
        kind: GroupKind,
        subscriptions: Vec<Subscription>,
        client: &Client,
        now: Duration,
        groups_max: usize,
    ) -> Option<bool> {
        let mut state = self.state();
        if !state.clients.has(group) && state.clients.len() >= groups_max {
            return None;
        }
        let joined = state.clients.heard(group, client, now);
        let entry = match state.groups.get_mut(group) {
            Some(entry) => entry,
            None => state.groups.entry(group.into()).or_default(),
        };
        entry.kind = kind;
        Some(entry.subscribe(subscriptions) || joined)
    }

    /// A consumer leaves one group; says whether it was in it.
    pub(crate) fn unregister(&self, group: &str, connection: u64) -> bool {
        let mut state = self.state();
        let removed = state.clients.remove(group, connection);
        state.forget_if_empty(group);
        removed
    }

    /// A connection is gone; gives the groups that lost a member.
    pub(crate) fn closed(&self, connection: u64) -> Vec<Arc<str>> {
        let mut state = self.state();
        let groups = state.clients.closed(connection);
        for group in &groups {
            state.forget_if_empty(group);
        }
        groups
    }

    /// Forgets consumers that were not heard of for `expiry`; gives the groups that lost a member.
    pub(crate) fn expire(&self, now: Duration, expiry: Duration) -> Vec<Arc<str>> {
        let mut state = self.state();
        let mut groups: Vec<_> = state.clients.expire(now, expiry).into_iter().map(|(group, _)| group).collect();
        groups.sort();
        groups.dedup();
        for group in &groups {
            state.forget_if_empty(group);
        }
        groups
    }

    /// Tells the members of a group that it changed: each works out anew which queues are its own. Nobody is told in a broadcasting group,
    /// where each member has all queues.
    pub(crate) fn notify(&self, group: &str) {
        let connections: Vec<_> = {
            let state = self.state();
            if state.groups.get(group).is_some_and(|group| group.kind.message_model == MessageModel::Broadcasting) {
                return;
            }
            state.clients.members(group).map(|member| Arc::clone(&member.client.connection)).collect()
        };
        let ext = ConsumerGroupHeader { consumer_group: group.into() }.encode();
        for connection in connections {
            let push = Command::request(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED).with_ext(ext.clone());
            if let Err(error) = connection.oneway(push) {
                tracing::debug!(group, peer = %connection.peer(), %error, "member not told of a change of its group");
            }
        }
    }

    /// The ids of a group's members, sorted.
    pub(crate) fn client_ids(&self, group: &str) -> Vec<Arc<str>> {
        let mut ids: Vec<_> =
            self.state().clients.members(group).map(|member| Arc::clone(&member.client.client_id)).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// A group that has members.
    pub(crate) fn group(&self, group: &str) -> Option<ConnectedGroup> {
        let state = self.state();
        let entry = state.groups.get(group)?;
        Some(ConnectedGroup {
            kind: entry.kind,
            members: state.clients.members(group).cloned().collect(),
            subscriptions: entry.subscriptions.values().cloned().collect(),
        })
    }

    /// What a group with members wants of a topic. The outer `None`: the group has no members.
    pub(crate) fn subscription(&self, group: &str, topic: &str) -> Option<Option<Arc<Subscription>>> {
        let state = self.state();
        state.groups.get(group).map(|group| group.subscriptions.get(topic).cloned())
    }

    /// Whether a group with members consumes in broadcasting mode.
    pub(crate) fn is_broadcasting(&self, group: &str) -> bool {
        self.state().groups.get(group).is_some_and(|group| group.kind.message_model == MessageModel::Broadcasting)
    }

    /// The groups that subscribe to a topic.
    pub(crate) fn groups_of(&self, topic: &str) -> Vec<Arc<str>> {
        let state = self.state();
        let subscribed = state.groups.iter().filter(|(_, group)| group.subscriptions.contains_key(topic));
        subscribed.map(|(group, _)| Arc::clone(group)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_if_empty(&mut self, group: &str) {
        if !self.clients.has(group) {
            self.groups.remove(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::clients::tests::client, *};

    const NOW: Duration = Duration::from_secs(1000);

    fn subscription(topic: &str, tags: &str, version: i64) -> Subscription {
        Subscription::parse(topic.into(), tags, version).unwrap()
    }

    fn heard(consumers: &Consumers, client: &Client, subscriptions: Vec<Subscription>) -> bool {
        consumers.heard("g", GroupKind::default(), subscriptions, client, NOW, 10).unwrap()
    }

    fn told(client: &Client) -> usize {
        client.connection.take_sent().iter().filter(|push| push.code == 40 && push.is_oneway()).count()
    }

    #[test]
    fn remoting_49_every_member_is_told_when_another_joins() {
        let consumers = Consumers::default();
        let (a, b) = (client("a"), client("b"));
        heard(&consumers, &a, vec![]);

        assert!(heard(&consumers, &b, vec![]));
        consumers.notify("g");

        assert_eq!((told(&a), told(&b)), (1, 1));
        assert_eq!(consumers.client_ids("g"), ["a".into(), "b".into()]);
        assert!(!heard(&consumers, &b, vec![]), "nothing changed by a second heartbeat");
    }

    #[test]
    fn remoting_50_a_closed_connection_shrinks_its_group_at_once() {
        let consumers = Consumers::default();
        let (a, b) = (client("a"), client("b"));
        heard(&consumers, &a, vec![]);
        heard(&consumers, &b, vec![]);

        assert_eq!(consumers.closed(b.connection.id()), ["g".into()]);

        assert_eq!(consumers.client_ids("g"), ["a".into()]);
    }

    #[test]
    fn the_last_heartbeat_decides_what_a_group_subscribes_to() {
        let consumers = Consumers::default();
        let a = client("a");
        heard(&consumers, &a, vec![subscription("T", "A", 5), subscription("U", "*", 1)]);

        assert!(heard(&consumers, &a, vec![subscription("T", "B", 6)]));
        assert!(!heard(&consumers, &a, vec![subscription("T", "A", 6)]), "an equal version changes nothing");

        assert_eq!(consumers.subscription("g", "T").unwrap().unwrap().tags, ["B"]);
        assert_eq!(consumers.subscription("g", "U"), Some(None));
        assert_eq!(consumers.subscription("none", "T"), None);
    }

    #[test]
    fn a_new_version_of_the_same_subscription_changes_nothing_for_the_members() {
        let consumers = Consumers::default();
        let a = client("a");
        heard(&consumers, &a, vec![subscription("T", "A", 5)]);
        let renewed = subscription("T", "A", 6);

        heard(&consumers, &a, vec![renewed]);

        assert_eq!(consumers.subscription("g", "T").unwrap().unwrap().version, 6);
    }

    #[test]
    fn members_of_a_broadcasting_group_are_not_told() {
        let consumers = Consumers::default();
        let a = client("a");
        let kind = GroupKind { message_model: MessageModel::Broadcasting, ..GroupKind::default() };
        consumers.heard("g", kind, vec![], &a, NOW, 10);

        consumers.notify("g");

        assert_eq!(told(&a), 0);
    }

    #[test]
    fn a_group_beyond_the_limit_is_not_taken() {
        let consumers = Consumers::default();
        heard(&consumers, &client("a"), vec![]);

        let taken = consumers.heard("h", GroupKind::default(), vec![], &client("b"), NOW, 1);

        assert_eq!(taken, None);
        assert!(consumers.client_ids("h").is_empty());
    }

    #[test]
    fn a_group_without_members_is_forgotten() {
        let consumers = Consumers::default();
        let a = client("a");
        heard(&consumers, &a, vec![subscription("T", "*", 1)]);

        assert!(consumers.unregister("g", a.connection.id()));

        assert!(consumers.group("g").is_none());
        assert!(!consumers.unregister("g", a.connection.id()));
    }
}
