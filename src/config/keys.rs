//! The table of keys: all that is known about `broker.conf` stands here, and only here.

use super::key::{Key, Kind};

/// Keys about one thing, in the order in which `conf/broker.conf` shows them.
#[derive(Debug)]
pub struct Section {
    /// What they are about.
    pub title: &'static str,
    /// The keys.
    pub keys: &'static [Key],
}

/// Largest value of a Java `int`, which RocketMQ uses for most sizes and times.
const INT_MAX: i64 = i32::MAX as i64;
/// Longest interval in milliseconds that makes sense: a day.
const DAY_MS: i64 = 86_400_000;

/// Every key that the broker does something about.
pub static SECTIONS: &[Section] = &[
    Section {
        title: "Who the broker is, and where it listens",
        keys: &[
            Key::new(
                "brokerClusterName",
                Kind::Name,
                "DefaultCluster",
                "Name of the cluster; shown by tools, and the name of a topic (see clusterTopicEnable).",
            ),
            Key::new(
                "brokerName",
                Kind::Name,
                "$HOSTNAME",
                "Name of the broker in routes. $HOSTNAME is the name of this machine. Keep it: consumers that are running know their queues by it.",
            ),
            Key::new(
                "bindAddress",
                Kind::Host,
                "127.0.0.1",
                "Address to listen on. RocketMQ's default is 0.0.0.0, every interface of the machine; ours lets nobody in from outside.\n\
                 There is no access control yet: open it only in a network that you trust. Change brokerIP1 and namesrvListenAddress with it.",
            ),
            Key::new(
                "listenPort",
                Kind::Number(0, 65_535),
                "10911",
                "Port to listen on; the port two below is served too, for old clients that use it (VIP channel). 0: any free pair of ports.",
            ),
            Key::new(
                "brokerIP1",
                Kind::HostOrNone,
                "",
                "Address that clients are told, and that message ids hold. Empty: bindAddress; if that is 0.0.0.0 or ::, the address from which\n\
                 this machine reaches other networks. Behind NAT or in a container: the address by which clients reach it.",
            ),
            Key::new(
                "serverChannelMaxIdleTimeSeconds",
                Kind::Number(1, INT_MAX),
                "120",
                "A connection on which nothing was sent in either direction for so many seconds is closed. Clients send a heartbeat every 30 s.",
            ),
            Key::new(
                "serverConnectionsMax",
                Kind::Number(1, INT_MAX),
                "65536",
                "Our own key. Most connections at once; a further one is closed. The limit of open files of the process must allow them.",
            ),
            Key::new(
                "serverUnfinishedBytesMax",
                Kind::Number(1_048_576, 1 << 40),
                "268435456",
                "Our own key. Bytes that frames of all connections may take in memory before they are complete; a connection that adds to more is\n\
                 closed. What a frame announces takes no memory, only what has come of it.",
            ),
            Key::new(
                "serverUnsentBytesPerConnection",
                Kind::Number(65_536, 1 << 40),
                "8388608",
                "Our own key. Bytes of answers that a client has not read beyond which no more of its requests are read. If answers to requests that\n\
                 were held make it twice as many (at least 32 MiB), and also if it reads nothing for 30 s, its connection is closed.",
            ),
            Key::new(
                "serverUnsentBytesMax",
                Kind::Number(1_048_576, 1 << 40),
                "268435456",
                "Our own key. Bytes of answers that all clients together have not read, beyond which no more requests are read of those that have not\n\
                 read 64 KiB. Each may still be sent the answer to one request, however large, beyond it.",
            ),
        ],
    },
    Section {
        title: "Name server",
        keys: &[
            Key::new(
                "namesrvListenAddress",
                Kind::AddressOrNone,
                "127.0.0.1:9876",
                "Our own key. Where the name server that lives in the broker listens; this is the address that clients are given. Port 0: any free\n\
                 one. Empty: there is none. Also what `latermq namesrv` listens on.",
            ),
            Key::new(
                "namesrvAddr",
                Kind::Addresses,
                "",
                "Outside name servers, separated by ;. If there are any, the broker registers with each of them and its own name server stays off.",
            ),
            Key::new(
                "registerNameServerPeriod",
                Kind::Number(10_000, 60_000),
                "30000",
                "Milliseconds between two registrations. Name servers forget a broker after 120 s.",
            ),
            Key::new(
                "registerBrokerTimeoutMills",
                Kind::Number(1, DAY_MS),
                "24000",
                "Milliseconds that a name server may take to answer a registration.",
            ),
            Key::new(
                "enableAllTopicList",
                Kind::Switch,
                "true",
                "Whether the name server tells the names of all topics; tools need it.",
            ),
            Key::new(
                "orderMessageEnable",
                Kind::Switch,
                "false",
                "Whether the name server's routes carry the order configuration of a topic.",
            ),
        ],
    },
    Section {
        title: "Delayed messages",
        keys: &[
            Key::new(
                "messageDelayLevel",
                Kind::Levels,
                "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
                "How long each delay level waits, from level 1 on, separated by single spaces. Units: s, m, h, d; each value above zero.\n\
             A message sent with a level beyond the last waits as long as the last. Messages that wait keep the time they were promised when this\n\
             changes. Consumers' retries use levels 3, 4, 5 and so on: keep these apart.",
            ).live(),
            Key::new(
                "parkAfter",
                Kind::Number(0, INT_MAX),
                "600000",
                "Our own key. Milliseconds for which a waiting message that cannot be read is tried again; then it is parked: counted, logged, and kept\n\
                 in a topic of its own, while those behind it go on.",
            ).live(),
        ],
    },
    Section {
        title: "Where and how messages are kept",
        keys: &[
            Key::new(
                "storePathRootDir",
                Kind::Path,
                "$HOME/latermq/store",
                "Folder of the store. RocketMQ's default is $HOME/store; ours is another, so that a live store is never touched by accident.\n\
                 The files are RocketMQ's: to take over a store of RocketMQ, stop it and name its folder here.",
            ),
            Key::new(
                "storePathCommitLog",
                Kind::Path,
                "commitlog",
                "Folder of the commit log; if it does not begin with /, it lies in storePathRootDir. One folder; several (a,b) are not supported.",
            ),
            Key::new(
                "flushDiskType",
                Kind::Word(&["ASYNC_FLUSH", "SYNC_FLUSH"]),
                "ASYNC_FLUSH",
                "When a producer is answered. ASYNC_FLUSH: when the message is in the log file; it survives a crash of the broker, but a power cut\n\
                 may take the last moments. SYNC_FLUSH: when it is on the disk; one sync serves all that wait.",
            ),
            Key::new(
                "flushIntervalCommitLog",
                Kind::Number(1, DAY_MS),
                "500",
                "ASYNC_FLUSH: milliseconds between two looks at whether there is enough to sync.",
            ),
            Key::new(
                "flushCommitLogLeastPages",
                Kind::Number(0, INT_MAX),
                "4",
                "ASYNC_FLUSH: pages of 4096 bytes that are enough. Less than that waits for flushCommitLogThoroughInterval.",
            ),
            Key::new(
                "flushCommitLogThoroughInterval",
                Kind::Number(1, DAY_MS),
                "10000",
                "ASYNC_FLUSH: milliseconds after which everything is synced, however little it is.",
            ),
            Key::new(
                "flushConsumeQueueThoroughInterval",
                Kind::Number(1, DAY_MS),
                "60000",
                "Milliseconds after which queues and index are synced and a checkpoint is written. Longer: more of the log is read after a crash.",
            ),
            Key::new(
                "mappedFileSizeCommitLog",
                Kind::Number(1, INT_MAX),
                "1073741824",
                "Bytes of a commit log file; the next one is allocated ahead. It must hold the largest record (maxMessageSize + 65536), and cannot change while there are files.",
            ),
            Key::new(
                "mappedFileSizeConsumeQueue",
                Kind::Number(20, INT_MAX),
                "6000000",
                "Bytes of a consume queue file, rounded up to a multiple of 20. It cannot change while there are files.",
            ),
            Key::new(
                "maxMessageSize",
                Kind::Number(1, INT_MAX),
                "4194304",
                "Largest body in bytes. Lowering it harms no message that was accepted before. Clients have a limit of their own.",
            ),
            Key::new("messageIndexEnable", Kind::Switch, "true", "Whether messages can be found by key and unique id."),
            Key::new(
                "maxHashSlotNum",
                Kind::Number(1, 500_000_000),
                "5000000",
                "Slots of an index file; 4 bytes each, on disk when used.",
            ),
            Key::new(
                "maxIndexNum",
                Kind::Number(2, 100_000_000),
                "20000000",
                "Entries of an index file; 20 bytes each, on disk when used.",
            ),
        ],
    },
    Section {
        title: "How long messages are kept. What waits for its time is never deleted, whatever stands here",
        keys: &[
            Key::new(
                "fileReservedTime",
                Kind::Number(0, 876_000),
                "72",
                "Hours after its last change from which a commit log file may be deleted.",
            ),
            Key::new(
                "deleteWhen",
                Kind::Hours,
                "04",
                "Hours of the day, in local time, in which such files are deleted, separated by ;. During the whole hour.",
            ),
            Key::new(
                "diskMaxUsedSpaceRatio",
                Kind::Number(1, 100),
                "75",
                "Percent of the disk in use above which such files are deleted at any hour.",
            ),
            Key::new(
                "diskSpaceCleanForciblyRatio",
                Kind::Number(1, 100),
                "85",
                "Percent above which the oldest files are deleted whatever their age.",
            ),
            Key::new(
                "diskSpaceWarningLevelRatio",
                Kind::Number(1, 100),
                "90",
                "Percent above which producers are refused.",
            ),
            Key::new(
                "cleanResourceInterval",
                Kind::Number(1, DAY_MS),
                "10000",
                "Milliseconds between two looks at what can be deleted.",
            ),
            Key::new(
                "deleteFileBatchMax",
                Kind::Number(1, INT_MAX),
                "10",
                "Most commit log files deleted at one look.",
            ),
        ],
    },
    Section {
        title: "Topics, groups and what clients may do",
        keys: &[
            Key::new(
                "brokerPermission",
                Kind::Number(0, 15),
                "6",
                "What may be done: 2 send, 4 read, 6 both. 4 lets consumers finish while producers go elsewhere.",
            ).live(),
            Key::new(
                "autoCreateTopicEnable",
                Kind::Switch,
                "true",
                "Whether a send to an unknown topic creates it, as the topic TBW102 is set.",
            ).live(),
            Key::new(
                "defaultTopicQueueNums",
                Kind::Number(1, 1024),
                "8",
                "Queues of TBW102: the most that a topic created by a send gets (Java producers ask for 4).",
            ).live(),
            Key::new(
                "autoCreateSubscriptionGroup",
                Kind::Switch,
                "true",
                "Whether an unknown consumer group is created on first use.",
            ).live(),
            Key::new("clusterTopicEnable", Kind::Switch, "true", "Whether there is a topic named like the cluster."),
            Key::new("brokerTopicEnable", Kind::Switch, "true", "Whether there is a topic named like the broker."),
            Key::new(
                "traceTopicEnable",
                Kind::Switch,
                "false",
                "Whether there is a topic for traces, RMQ_SYS_TRACE_TOPIC.",
            ),
            Key::new("traceOn", Kind::Switch, "true", "Whether clients that can trace messages are asked to.").live(),
            Key::new("regionId", Kind::Name, "DefaultRegion", "Region, told to producers and kept with each message."),
        ],
    },
    Section {
        title: "Consumers",
        keys: &[
            Key::new(
                "longPollingEnable",
                Kind::Switch,
                "true",
                "Whether a pull that finds nothing waits until a message arrives.",
            ).live(),
            Key::new(
                "shortPollingTimeMills",
                Kind::Number(1, DAY_MS),
                "1000",
                "Milliseconds that such a pull waits when longPollingEnable is false.",
            ).live(),
            Key::new(
                "maxTransferBytesOnMessageInMemory",
                Kind::Number(1, INT_MAX),
                "262144",
                "Most bytes of a pull answer; one message is given whatever its size.",
            ),
            Key::new(
                "maxTransferCountOnMessageInMemory",
                Kind::Number(1, INT_MAX),
                "32",
                "Most messages of a pull answer.",
            ),
            Key::new("maxMsgsNumBatch", Kind::Number(1, INT_MAX), "64", "Most messages that a query by key gives."),
            Key::new(
                "flushConsumerOffsetInterval",
                Kind::Number(1, DAY_MS),
                "5000",
                "Milliseconds between two savings of how far consumers are. After a crash they may get so much again.",
            ).live(),
            Key::new(
                "consumerOffsetUpdateVersionStep",
                Kind::Number(1, INT_MAX),
                "500",
                "Commits of consumers that make a new version of the offset table, as tools see it.",
            ),
            Key::new(
                "channelExpiredTimeout",
                Kind::Number(1, DAY_MS),
                "120000",
                "Milliseconds of silence after which a client is taken for gone and its queues go to others.",
            ).live(),
            Key::new(
                "rebalanceLockMaxLiveTime",
                Kind::Number(1, DAY_MS),
                "60000",
                "Milliseconds that the lock of an orderly consumer on a queue lasts unless renewed. A system property in RocketMQ\n\
                 (rocketmq.broker.rebalance.lockMaxLiveTime), a key here.",
            ),
        ],
    },
    Section {
        title: "Logs",
        keys: &[Key::new(
            "logFormat",
            Kind::Word(&["text", "json"]),
            "text",
            "Our own key. How the log on stderr is written. How much is logged says the environment variable RUST_LOG (info, debug, latermq=debug …).",
        )],
    },
    Section {
        title: "Not supported yet: with another value the broker does not start, since going on would put data or security at risk",
        keys: &[
            Key::only(
                "brokerRole",
                Kind::Word(&["ASYNC_MASTER"]),
                "ASYNC_MASTER",
                "there is no replication: no slave, and no waiting for one",
            ),
            Key::only("brokerId", Kind::Number(0, 0), "0", "0 is a master; there are no slaves"),
            Key::only("storeType", Kind::Word(&["default"]), "default", "queues lie in files, not in RocksDB"),
            Key::only(
                "configManagerVersion",
                Kind::Word(&["v1"]),
                "v1",
                "topics, groups and offsets lie in JSON files, not in RocksDB",
            ),
            Key::only("aclEnable", Kind::Switch, "false", "there is no access control"),
            Key::only("authenticationEnabled", Kind::Switch, "false", "there is no authentication"),
            Key::only("authorizationEnabled", Kind::Switch, "false", "there is no authorization"),
            Key::only("useTLS", Kind::Switch, "false", "connections are not encrypted"),
            Key::only(
                "enableDLegerCommitLog",
                Kind::Switch,
                "false",
                "the commit log is one broker's own, without Raft",
            ),
            Key::only("enableControllerMode", Kind::Switch, "false", "there is no election of masters"),
            Key::only("enableSlaveActingMaster", Kind::Switch, "false", "there are no slaves"),
            Key::only("enableLmq", Kind::Switch, "false", "there are no light message queues"),
            Key::only("enableMultiDispatch", Kind::Switch, "false", "a message goes to one queue"),
            Key::only("enableConsumeQueueExt", Kind::Switch, "false", "queues have no extension files"),
            Key::only("messageStorePlugIn", Kind::Word(&[""]), "", "Java plug-ins cannot be loaded"),
            Key::only("readOnlyCommitLogStorePaths", Kind::Word(&[""]), "", "the commit log lies in one folder"),
        ],
    },
];
