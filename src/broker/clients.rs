//! Connected clients by group.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use crate::{protocol::Language, remoting::Connection};

/// A connected client.
#[derive(Clone)]
pub(crate) struct Client {
    /// The id it gave itself.
    pub(crate) client_id: Arc<str>,
    /// Its language.
    pub(crate) language: Language,
    /// Version of RocketMQ it announces.
    pub(crate) version: i32,
    /// Its connection; pushes travel on it.
    pub(crate) connection: Arc<Connection>,
}

/// A client in a group.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The client.
    pub(crate) client: Client,
    /// When its last heartbeat came, in boot time.
    pub(crate) seen_at: Duration,
}

/// The clients of many groups. A member is known by group and connection; the id is what it says of itself.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    groups: HashMap<Arc<str>, HashMap<u64, Member>>,
    connections: HashMap<u64, HashSet<Arc<str>>>,
}

impl Clients {
    /// Notes a heartbeat; says whether the group's members changed. A client id seen on a new connection leaves its old one.
    pub(crate) fn heard(&mut self, group: &str, client: &Client, now: Duration) -> bool {
        let key = match self.groups.get_key_value(group) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(group),
        };
        let members = self.groups.entry(Arc::clone(&key)).or_default();
        let connection = client.connection.id();
        if let Some(member) = members.get_mut(&connection) {
            let changed = member.client.client_id != client.client_id;
            *member = Member { client: client.clone(), seen_at: now };
            return changed;
        }
        let old: Vec<u64> = members
            .iter()
            .filter(|(_, member)| member.client.client_id == client.client_id)
            .map(|(&connection, _)| connection)
            .collect();
        members.insert(connection, Member { client: client.clone(), seen_at: now });
        for old in old {
            self.remove(group, old);
        }
        self.connections.entry(connection).or_default().insert(key);
        true
    }

    /// Removes a connection from one group; says whether it was there.
    pub(crate) fn remove(&mut self, group: &str, connection: u64) -> bool {
        let Some(members) = self.groups.get_mut(group) else {
            return false;
        };
        let removed = members.remove(&connection).is_some();
        if members.is_empty() {
            self.groups.remove(group);
        }
        if let Some(groups) = self.connections.get_mut(&connection) {
            groups.remove(group);
            if groups.is_empty() {
                self.connections.remove(&connection);
            }
        }
        removed
    }

    /// Removes a connection everywhere; gives the groups it was in.
    pub(crate) fn closed(&mut self, connection: u64) -> Vec<Arc<str>> {
        let groups: Vec<_> = self.connections.get(&connection).into_iter().flatten().cloned().collect();
        groups.into_iter().filter(|group| self.remove(group, connection)).collect()
    }

    /// Removes members that were not heard of for `expiry`; gives them with their groups.
    pub(crate) fn expire(&mut self, now: Duration, expiry: Duration) -> Vec<(Arc<str>, Client)> {
        let mut gone = Vec::new();
        for (group, members) in &self.groups {
            for member in members.values().filter(|member| now.saturating_sub(member.seen_at) >= expiry) {
                gone.push((Arc::clone(group), member.client.clone()));
            }
        }
        gone.into_iter().filter(|(group, client)| self.remove(group, client.connection.id())).collect()
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: &str) -> impl Iterator<Item = &Member> {
        self.groups.get(group).into_iter().flat_map(HashMap::values)
    }

    /// Whether a group has members.
    pub(crate) fn has(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// The groups that have members.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Arc<str>> {
        self.groups.keys()
    }

    /// How many groups have members.
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("client_id", &self.client_id)
            .field("language", &self.language.name())
            .field("version", &self.version)
            .field("peer", &self.connection.peer())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A client without a socket.
    pub(crate) fn client(client_id: &str) -> Client {
        let address = ([127, 0, 0, 1], 1).into();
        let connection = Connection::unconnected(address, address);
        Client { client_id: client_id.into(), language: Language::JAVA, version: 479, connection }
    }

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn a_client_that_comes_back_on_another_connection_leaves_the_old_one() {
        let mut clients = Clients::default();
        let (first, second) = (client("a"), client("a"));
        assert!(clients.heard("g", &first, NOW));
        assert!(!clients.heard("g", &first, NOW));

        assert!(clients.heard("g", &second, NOW));

        let members: Vec<_> = clients.members("g").map(|member| member.client.connection.id()).collect();
        assert_eq!(members, [second.connection.id()]);
        assert_eq!(clients.closed(first.connection.id()).len(), 0);
    }

    #[test]
    fn remoting_50_a_closed_connection_leaves_every_group() {
        let mut clients = Clients::default();
        let one = client("a");
        clients.heard("g", &one, NOW);
        clients.heard("h", &one, NOW);
        clients.heard("h", &client("b"), NOW);

        let mut left = clients.closed(one.connection.id());

        left.sort();
        assert_eq!(left, ["g".into(), "h".into()]);
        assert!(!clients.has("g") && clients.has("h"));
    }

    #[test]
    fn a_member_expires_when_it_was_not_heard_of_for_the_whole_time() {
        let mut clients = Clients::default();
        clients.heard("g", &client("a"), Duration::ZERO);
        let expiry = Duration::from_secs(120);

        assert!(clients.expire(Duration::from_millis(119_999), expiry).is_empty());
        assert_eq!(clients.expire(expiry, expiry).len(), 1);
        assert!(!clients.has("g") && clients.connections.is_empty());
    }
}
