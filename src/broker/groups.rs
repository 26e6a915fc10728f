//! The consumer groups of the broker and their settings.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::info;

use super::{BrokerOptions, failure::Failure, table_file::TableFile};
use crate::{
    model::is_name_byte,
    protocol::{
        ResponseCode,
        body::{DataVersion, SubscriptionGroupConfig, SubscriptionGroups},
        json,
    },
    store::MessageStore,
};

/// Longest name of a group in bytes: its retry topic then fits into 127, which every client can read.
pub(crate) const GROUP_BYTES_MAX: usize = 120;
/// Groups that tools use without asking for them.
///
/// Source: Apache RocketMQ, `SubscriptionGroupManager.init`.
const SYSTEM_GROUPS: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

/// The group table, kept in `subscriptionGroup.json`. A change is in the file before the request that made it is answered;
/// a group that is created because someone uses it goes on without.
pub(crate) struct Groups {
    auto_create: AtomicBool,
    groups_max: usize,
    store: Arc<MessageStore>,
    file: TableFile,
    state: RwLock<State>,
}

struct State {
    table: HashMap<String, Arc<SubscriptionGroupConfig>>,
    forbidden: BTreeMap<String, BTreeMap<String, i32>>,
    version: DataVersion,
}

impl Groups {
    /// Loads the table and adds the groups of tools.
    pub(crate) fn load(options: &BrokerOptions, store: Arc<MessageStore>) -> Self {
        let file = TableFile::new("subscriptionGroup.json", &store);
        let loaded: SubscriptionGroups =
            file.load(|text| json::from_slice(text.as_bytes()).map_err(|error| error.to_string())).unwrap_or_default();
        let mut table: HashMap<_, _> = loaded
            .subscription_group_table
            .into_iter()
            .map(|(name, config)| (name.clone(), Arc::new(SubscriptionGroupConfig { group_name: name, ..config })))
            .collect();
        for name in SYSTEM_GROUPS {
            table.entry(name.into()).or_insert_with(|| Arc::new(named(name)));
        }
        let state = State { table, forbidden: loaded.forbidden_table, version: loaded.data_version };
        Self {
            auto_create: AtomicBool::new(options.auto_create_groups),
            groups_max: options.groups_max,
            store,
            file,
            state: RwLock::new(state),
        }
    }

    /// Whether unknown groups are created from now on.
    pub(crate) fn set_auto_create(&self, auto_create: bool) {
        self.auto_create.store(auto_create, Ordering::Relaxed);
    }

    /// A group's settings, if it is known.
    pub(crate) fn get(&self, group: &str) -> Option<Arc<SubscriptionGroupConfig>> {
        self.state().table.get(group).cloned()
    }

    /// A group's settings; an unknown group is created if that is allowed.
    ///
    /// # Errors
    /// Code 26: it is unknown and not created.
    pub(crate) fn get_or_create(&self, group: &str) -> Result<Arc<SubscriptionGroupConfig>, Failure> {
        if let Some(config) = self.get(group) {
            return Ok(config);
        }
        if !self.auto_create.load(Ordering::Relaxed) {
            return Err(unknown(group));
        }
        validate(group).map_err(|remark| Failure::new(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark))?;
        let config = Arc::new(named(group));
        {
            let mut state = self.state_mut();
            if let Some(known) = state.table.get(group) {
                return Ok(Arc::clone(known));
            }
            self.check_room(&state)?;
            state.table.insert(group.into(), Arc::clone(&config));
            self.note_change(&mut state);
        }
        info!(group, "group created");
        self.save();
        Ok(config)
    }

    /// Creates or changes a group on request.
    ///
    /// # Errors
    /// Code 1: the name is none, or the table could not be saved. Code 26: there are too many groups.
    pub(crate) fn update(&self, config: SubscriptionGroupConfig) -> Result<(), Failure> {
        validate(&config.group_name).map_err(|remark| Failure::new(ResponseCode::SYSTEM_ERROR, remark))?;
        let group = config.group_name.clone();
        {
            let mut state = self.state_mut();
            if !state.table.contains_key(&group) {
                self.check_room(&state)?;
            }
            state.table.insert(group.clone(), Arc::new(config));
            self.note_change(&mut state);
        }
        info!(group, "group changed on request");
        self.save_on_request()
    }

    /// Deletes a group on request, if there is one.
    ///
    /// # Errors
    /// Code 1: the table could not be saved.
    pub(crate) fn delete(&self, group: &str) -> Result<(), Failure> {
        let removed = {
            let mut state = self.state_mut();
            state.forbidden.remove(group);
            let removed = state.table.remove(group).is_some();
            if removed {
                self.note_change(&mut state);
            }
            removed
        };
        if removed {
            info!(group, "group deleted on request");
        }
        self.save_on_request()
    }

    /// All groups with the version of the table.
    pub(crate) fn all(&self) -> SubscriptionGroups {
        let state = self.state();
        let table = state.table.iter().map(|(name, config)| (name.clone(), (**config).clone()));
        SubscriptionGroups {
            data_version: state.version,
            forbidden_table: state.forbidden.clone(),
            subscription_group_table: table.collect(),
        }
    }

    fn check_room(&self, state: &State) -> Result<(), Failure> {
        if state.table.len() < self.groups_max {
            return Ok(());
        }
        let remark = format!("there are already {} groups", self.groups_max);
        Err(Failure::new(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark))
    }

    fn note_change(&self, state: &mut State) {
        state.version = state.version.next(self.store.env().clock.wall().0);
        self.file.note_change();
    }

    /// How often the file could not be saved.
    pub(super) fn save_failures(&self) -> u64 {
        self.file.failures()
    }

    /// Saves what is not saved yet.
    pub(super) fn save(&self) {
        self.file.save_or_warn(|| self.render());
    }

    fn save_on_request(&self) -> Result<(), Failure> {
        self.file.save_on_request(|| self.render())
    }

    /// The text of the file.
    fn render(&self) -> Vec<u8> {
        json::to_vec_pretty(&self.all())
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to who names a group that does not exist.
pub(crate) fn unknown(group: &str) -> Failure {
    Failure::new(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, format!("subscription group [{group}] does not exist"))
}

fn named(group: &str) -> SubscriptionGroupConfig {
    SubscriptionGroupConfig { group_name: group.into(), ..SubscriptionGroupConfig::default() }
}

fn validate(group: &str) -> Result<(), String> {
    if group.trim().is_empty() {
        return Err("the group name is blank".into());
    }
    if group.len() > GROUP_BYTES_MAX {
        return Err(format!("the group name has {} bytes, more than {GROUP_BYTES_MAX}", group.len()));
    }
    if !group.bytes().all(is_name_byte) {
        return Err(format!("the group name {group:?} contains characters other than ^[%|a-zA-Z0-9_-]+$"));
    }
    Ok(())
}
