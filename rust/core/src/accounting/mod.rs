//! Usage, cost and the record that each request leaves.

pub mod body_secrets;
pub mod budget_sums;
pub mod compressed_response;
mod cut_json;
pub mod inline_data;
mod malformed_secrets;
pub mod prices;
pub mod record;
pub mod record_columns;
pub mod request_counts;
pub mod routing_decision;
pub mod saved_models;
pub mod spool;
pub mod token_counting;
