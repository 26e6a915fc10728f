//! Hands each request to what answers it.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Broker, admin,
    blocking::blocking,
    configuration,
    failure::{Answer, Failure},
    heartbeat, locks, pull, query, send, send_back,
};
use crate::{
    protocol::{Command, RequestCode as Code, ResponseCode},
    remoting::{Connection, Responder, not_supported},
};

/// The request codes a broker serves. Anything else is answered with code 3 and the name of the code.
pub const SUPPORTED_CODES: &[i32] = &[
    Code::SEND_MESSAGE,
    Code::PULL_MESSAGE,
    Code::QUERY_MESSAGE,
    Code::QUERY_CONSUMER_OFFSET,
    Code::UPDATE_CONSUMER_OFFSET,
    Code::UPDATE_AND_CREATE_TOPIC,
    Code::GET_ALL_TOPIC_CONFIG,
    Code::UPDATE_BROKER_CONFIG,
    Code::GET_BROKER_CONFIG,
    Code::GET_BROKER_RUNTIME_INFO,
    Code::SEARCH_OFFSET_BY_TIMESTAMP,
    Code::GET_MAX_OFFSET,
    Code::GET_MIN_OFFSET,
    Code::GET_EARLIEST_MSG_STORETIME,
    Code::VIEW_MESSAGE_BY_ID,
    Code::HEART_BEAT,
    Code::UNREGISTER_CLIENT,
    Code::CONSUMER_SEND_MSG_BACK,
    Code::GET_CONSUMER_LIST_BY_GROUP,
    Code::LOCK_BATCH_MQ,
    Code::UNLOCK_BATCH_MQ,
    Code::GET_ALL_CONSUMER_OFFSET,
    Code::GET_ALL_DELAY_OFFSET,
    Code::CHECK_CLIENT_CONFIG,
    Code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code::GET_TOPIC_STATS_INFO,
    Code::GET_CONSUMER_CONNECTION_LIST,
    Code::GET_PRODUCER_CONNECTION_LIST,
    Code::DELETE_SUBSCRIPTIONGROUP,
    Code::GET_CONSUME_STATS,
    Code::DELETE_TOPIC_IN_BROKER,
    Code::QUERY_TOPIC_CONSUME_BY_WHO,
    Code::GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code::SEND_MESSAGE_V2,
    Code::SEND_BATCH_MESSAGE,
    Code::GET_ALL_PRODUCER_INFO,
    Code::GET_TOPIC_CONFIG,
    Code::GET_SUBSCRIPTIONGROUP_CONFIG,
    Code::LITE_PULL_MESSAGE,
];

/// Requests that are served while the broker stops: they end what clients began.
const SERVED_TO_THE_END: [i32; 3] = [Code::UPDATE_CONSUMER_OFFSET, Code::UNREGISTER_CLIENT, Code::UNLOCK_BATCH_MQ];
/// Clients of a later version than this understand that a broker goes away: 5.3.1.
const GO_AWAY_ABOVE_VERSION: i32 = 475;

/// Takes the next request off the front and answers it, now or later; sends of one message each are handled together.
pub(super) fn route_some(broker: &Broker, connection: &Arc<Connection>, requests: &mut VecDeque<(Command, Responder)>) {
    if !broker.is_stopping() && requests.front().is_some_and(|(request, _)| send::is_single(request)) {
        send::handle_some(broker, connection, requests);
    } else if let Some((request, responder)) = requests.pop_front() {
        route(broker, connection, &request, responder);
    }
}

/// Answers a request, now or later. It does not send a single message.
fn route(broker: &Broker, connection: &Arc<Connection>, request: &Command, responder: Responder) {
    if broker.is_stopping() && !SERVED_TO_THE_END.contains(&request.code) {
        match request.code {
            Code::PULL_MESSAGE | Code::LITE_PULL_MESSAGE => responder.leave_unanswered(),
            _ => responder.reply(going_away(request)),
        }
        return;
    }
    match request.code {
        Code::SEND_MESSAGE | Code::SEND_MESSAGE_V2 | Code::SEND_BATCH_MESSAGE => {
            send::handle_batch(broker, connection, request, responder);
        }
        Code::PULL_MESSAGE | Code::LITE_PULL_MESSAGE => pull::handle(broker, request, responder),
        Code::CONSUMER_SEND_MSG_BACK => send_back::handle(broker, request, responder),
        _ => responder.reply(answer(broker, connection, request).unwrap_or_else(Failure::into_command)),
    }
}

fn answer(broker: &Broker, connection: &Arc<Connection>, request: &Command) -> Answer {
    match request.code {
        Code::HEART_BEAT => blocking(|| heartbeat::heartbeat(broker, connection, request)),
        Code::UNREGISTER_CLIENT => heartbeat::unregister(broker, connection, request),
        Code::GET_CONSUMER_LIST_BY_GROUP => heartbeat::list(broker, request),
        Code::QUERY_CONSUMER_OFFSET => query::consumer_offset(broker, request),
        Code::UPDATE_CONSUMER_OFFSET => query::update_consumer_offset(broker, request),
        Code::SEARCH_OFFSET_BY_TIMESTAMP => query::search_offset(broker, request),
        Code::GET_MAX_OFFSET => query::max_offset(broker, request),
        Code::GET_MIN_OFFSET => query::min_offset(broker, request),
        Code::GET_EARLIEST_MSG_STORETIME => query::earliest_time(broker, request),
        Code::VIEW_MESSAGE_BY_ID => query::view_message(broker, request),
        Code::QUERY_MESSAGE => query::query_message(broker, request),
        Code::LOCK_BATCH_MQ => locks::lock(broker, request),
        Code::UNLOCK_BATCH_MQ => locks::unlock(broker, request),
        Code::UPDATE_AND_CREATE_TOPIC => admin::update_topic(broker, request),
        Code::DELETE_TOPIC_IN_BROKER => admin::delete_topic(broker, request),
        Code::GET_ALL_TOPIC_CONFIG => admin::all_topics(broker),
        Code::GET_TOPIC_CONFIG => admin::topic(broker, request),
        Code::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => admin::system_topics(broker),
        Code::GET_TOPIC_STATS_INFO => admin::topic_stats(broker, request),
        Code::QUERY_TOPIC_CONSUME_BY_WHO => admin::groups_of_topic(broker, request),
        Code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => admin::update_group(broker, request),
        Code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => admin::all_groups(broker),
        Code::GET_SUBSCRIPTIONGROUP_CONFIG => admin::group(broker, request),
        Code::DELETE_SUBSCRIPTIONGROUP => admin::delete_group(broker, request),
        Code::GET_CONSUMER_CONNECTION_LIST => admin::consumer_connections(broker, request),
        Code::GET_PRODUCER_CONNECTION_LIST => admin::producer_connections(broker, request),
        Code::GET_ALL_PRODUCER_INFO => admin::all_producers(broker),
        Code::GET_CONSUME_STATS => admin::consume_stats(broker, request),
        Code::GET_ALL_CONSUMER_OFFSET => admin::all_consumer_offsets(broker),
        Code::GET_ALL_DELAY_OFFSET => admin::delay_offsets(broker),
        Code::CHECK_CLIENT_CONFIG => admin::check_client(request),
        Code::UPDATE_BROKER_CONFIG => configuration::update(broker, request),
        Code::GET_BROKER_CONFIG => configuration::show(broker),
        Code::GET_BROKER_RUNTIME_INFO => admin::runtime_info(broker),
        _ => Ok(not_supported(request)),
    }
}

fn going_away(request: &Command) -> Command {
    let code = if request.version > GO_AWAY_ABOVE_VERSION {
        ResponseCode::GO_AWAY
    } else {
        ResponseCode::SERVICE_NOT_AVAILABLE
    };
    Command::response(code).with_remark("the broker is stopping")
}
