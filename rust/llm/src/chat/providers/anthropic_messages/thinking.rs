//! Thinking config for Claude, from a `thinking` object or a reasoning effort.

use serde_json::{Value, json};

use crate::{
    chat::{
        claude_version::{DisableMode, ThinkingMode, claude_version, is_adaptive_only},
        providers::openai_chat::reasoning_details,
        request::{ChatRequest, Message, Part, Role, ToolChoice, is_server_tool_block},
        thinking_param::{DYNAMIC_BUDGET, effort_for_budget, parse_effort},
    },
    errors::RequestError,
    fields::Fields,
    reports::DroppedParams,
};

/// Minimum thinking budget that Anthropic accepts, in tokens.
const MIN_BUDGET_TOKENS: u64 = 1024;
/// Budget of a client that enables thinking without one, if the model requires a budget.
const DEFAULT_BUDGET_TOKENS: u64 = 8192;
/// Tokens of `max_tokens` that are reserved for the answer if the client sends an effort instead of a budget.
const MIN_ANSWER_TOKENS: u64 = 256;

/// Removes sampling parameters that the model rejects.
pub fn drop_unsupported_sampling(request: &mut ChatRequest, model: &str) {
    if is_adaptive_only(model) {
        for key in ["temperature", "top_p", "top_k"] {
            // The default value is not reported as dropped.
            let dropped = request.take_param(key).filter(|value| key == "top_k" || *value != 1 && *value != 1.0);
            request.record_dropped_if_set(key, dropped.as_ref());
        }
        return;
    }
    let refuses_both = claude_version(model).is_some_and(|version| version >= (4, 1));
    if refuses_both && request.fields.get("temperature").is_some_and(|value| !value.is_null()) {
        let dropped = request.take_param("top_p");
        request.record_dropped_if_set("top_p", dropped.as_ref());
    }
}

/// Writes `thinking` for a model and removes parameters that conflict with it. `supports_thinking` is false if thinking
/// cannot be enabled.
pub fn write_config(
    request: &mut ChatRequest,
    model: &str,
    out: &mut Fields,
    supports_thinking: bool,
) -> Result<(), RequestError> {
    let effort = parse_effort(request)?;
    let kind = ThinkingMode::for_model(model);
    if let ThinkingMode::AdaptiveOnly(rest) = kind {
        write_adaptive(request, effort.map(|(level, _)| level), rest, out, supports_thinking);
        return Ok(());
    }
    let effort_budget = effort.map(|(_, budget)| budget).filter(|budget| *budget > 0);
    let (thinking, param_name, reserved_tokens) = match (request.take_param("thinking"), effort) {
        (Some(thinking), Some((level, 1..)))
            if kind == ThinkingMode::BudgetOrAdaptive && thinking["type"] == "adaptive" =>
        {
            set_output_config(out, "effort", effort_level(level).into());
            (thinking, "thinking", 1)
        }
        (Some(thinking), effort) => {
            // An explicit `thinking` object takes precedence over the effort.
            let needs_budget = kind == ThinkingMode::Budget
                && thinking["type"] != "disabled"
                && read_budget_tokens(&thinking).is_none();
            let is_used = needs_budget && effort_budget.is_some();
            request.record_dropped_if_set("reasoning_effort", effort.filter(|_| !is_used).as_ref());
            (thinking, "thinking", 1)
        }
        (None, Some((_, 0))) => (json!({"type": "disabled"}), "reasoning_effort", 0),
        (None, Some((_, budget))) => {
            (json!({"type": "enabled", "budget_tokens": budget}), "reasoning_effort", MIN_ANSWER_TOKENS)
        }
        (None, None) => return Ok(()),
    };
    if thinking["type"] == "disabled" {
        out.insert("thinking".into(), thinking);
        return Ok(());
    }
    let (thinking, is_adapted) = adapt_to_mode(thinking, kind, effort_budget);
    request.record_dropped_if_set(param_name, is_adapted.then_some(&()));
    match fit_budget(thinking, out, reserved_tokens).filter(|_| supports_thinking) {
        Some((thinking, is_changed)) => {
            request.record_dropped_if_set(param_name, is_changed.then_some(&()));
            out.insert("thinking".into(), thinking);
            drop_conflicting_sampling(out, &mut request.dropped_params);
        }
        None => request.record_dropped(param_name),
    }
    Ok(())
}

/// Returns the budget that the client set, in tokens.
fn read_budget_tokens(thinking: &Value) -> Option<u64> {
    thinking["budget_tokens"].as_u64()
}

/// Returns the config in a form that the model accepts: a type with its budget, or adaptive thinking without one. Also
/// returns true if it differs from what the client asked for.
fn adapt_to_mode(mut thinking: Value, mode: ThinkingMode, effort_budget: Option<u64>) -> (Value, bool) {
    let (is_adaptive, budget) = (thinking["type"] == "adaptive", read_budget_tokens(&thinking));
    if mode == ThinkingMode::Budget {
        let is_complete = !is_adaptive && budget.is_some();
        thinking["type"] = "enabled".into();
        thinking["budget_tokens"] = budget.or(effort_budget).unwrap_or(DEFAULT_BUDGET_TOKENS).into();
        return (thinking, !is_complete && (is_adaptive || effort_budget.is_none()));
    }
    if !is_adaptive && budget.is_some() {
        return (thinking, false);
    }
    let is_dynamic = thinking["budget_tokens"] == DYNAMIC_BUDGET;
    thinking["type"] = "adaptive".into();
    if let Some(config) = thinking.as_object_mut() {
        config.shift_remove("budget_tokens");
    }
    (thinking, !is_dynamic && (!is_adaptive || budget.is_some()))
}

/// Writes the thinking config for a model with adaptive thinking only.
fn write_adaptive(
    request: &mut ChatRequest,
    effort: Option<&'static str>,
    rest: DisableMode,
    out: &mut Fields,
    supports_thinking: bool,
) {
    let thinking = request.take_param("thinking");
    let is_off = thinking.as_ref().map_or(effort == Some("none"), |thinking| thinking["type"] == "disabled");
    if is_off {
        match rest {
            DisableMode::Omitted => (),
            DisableMode::Explicit => drop(out.insert("thinking".into(), json!({"type": "disabled"}))),
            DisableMode::Impossible => {
                request.record_dropped(if thinking.is_some() { "thinking" } else { "reasoning_effort" });
                set_output_config(out, "effort", "low".into());
            }
        }
        return;
    }
    let budget = thinking.as_ref().and_then(|thinking| thinking["budget_tokens"].as_u64());
    request.record_dropped_if_set("thinking.budget_tokens", budget.as_ref());
    // The model rejects budgets.
    let chosen_level = effort.filter(|level| *level != "none").or(budget.map(effort_for_budget));
    if let Some(level) = chosen_level {
        set_output_config(out, "effort", effort_level(level).into());
        request.record_dropped_if_set("reasoning_effort", (effort_level(level) != level).then_some(&()));
    }
    match thinking {
        None if chosen_level.is_none() => (),
        _ if !supports_thinking => request.record_dropped_if_set("thinking", thinking.as_ref()),
        Some(mut config) if config["type"] == "adaptive" => {
            // The model rejects a budget beside the adaptive type.
            if let Some(fields) = config.as_object_mut() {
                fields.shift_remove("budget_tokens");
            }
            out.insert("thinking".into(), config);
        }
        Some(config) => {
            let mut adaptive = json!({"type": "adaptive"});
            if let Some(display) = config.get("display") {
                adaptive["display"] = display.clone();
            }
            out.insert("thinking".into(), adaptive);
        }
        None => drop(out.insert("thinking".into(), json!({"type": "adaptive"}))),
    }
}

/// Maps `minimal` to `low`, the lowest effort that Claude supports.
fn effort_level(effort: &'static str) -> &'static str {
    if effort == "minimal" { "low" } else { effort }
}

/// Sets one field of `output_config` and keeps the others.
pub fn set_output_config(out: &mut Fields, key: &str, value: Value) {
    let config = out.entry("output_config").or_insert_with(|| json!({}));
    if let Some(config) = config.as_object_mut() {
        config.insert(key.into(), value);
    }
}

/// Rejects a forced tool call if the model does not support it. The choice cannot be dropped, because the response
/// might then lack the call that the client requires.
pub fn reject_forced_tool_choice(request: &ChatRequest) -> Result<(), RequestError> {
    if matches!(request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_))) && is_at_least_version(request, 5, 1)
    {
        return Err(RequestError::new(
            "tool_choice",
            "this model cannot be forced to call a tool; must be auto or none",
        ));
    }
    Ok(())
}

/// Returns the index of the last assistant message, which may be a prefill, if the model does not support prefills.
pub fn prefill_index(request: &ChatRequest) -> Option<usize> {
    let is_answer = |message: &Message| message.role == Role::Assistant;
    if is_at_least_version(request, 4, 6) { request.messages.iter().rposition(is_answer) } else { None }
}

/// Rejects a prefill if the written request ends with it. Checks the written request, because it does not contain empty
/// messages. `response` is the result of `prefill_index`.
pub fn reject_prefill(response: Option<usize>, written: &Fields) -> Result<(), RequestError> {
    let last = written.get("messages").and_then(|messages| messages.as_array()?.last());
    let (Some(at), Some(last)) = (response, last.filter(|last| last["role"] == "assistant")) else { return Ok(()) };
    let kind = last["content"].as_array().and_then(|blocks| blocks.last()?["type"].as_str());
    // A turn that ends with a server tool was paused; the client sends it back so that the model continues it.
    if kind.is_some_and(is_server_tool_block) {
        return Ok(());
    }
    Err(RequestError::new(
        format!("messages[{at}]"),
        "this model does not support assistant prefill; the last message must be from the user",
    ))
}

fn is_at_least_version(request: &ChatRequest, major: u32, minor: u32) -> bool {
    claude_version(&request.model).is_some_and(|version| version >= (major, minor))
}

/// Returns true if thinking can be enabled. It cannot be combined with a forced tool call.
pub fn can_think(request: &ChatRequest, model: &str) -> bool {
    let is_forced = matches!(request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_)));
    // Models with adaptive thinking only accept earlier turns without thinking blocks.
    !is_forced && (is_adaptive_only(model) || !continues_without_thinking(request))
}

/// Fits the thinking budget into `max_tokens`, which includes it. If fewer than `reserved_tokens` tokens would remain
/// for the answer, the budget becomes half of `max_tokens`. A budget below the minimum becomes the minimum. Returns the
/// config, and true if the budget was changed. Returns `None` if the minimum leaves too few tokens for the answer.
fn fit_budget(mut thinking: Value, out: &mut Fields, reserved_tokens: u64) -> Option<(Value, bool)> {
    let Some(requested) = thinking["budget_tokens"].as_u64() else { return Some((thinking, false)) };
    let budget = requested.max(MIN_BUDGET_TOKENS);
    let max_tokens = out.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    let is_fitting = budget.saturating_add(reserved_tokens) <= max_tokens;
    let fitting = if is_fitting { budget } else { (max_tokens / 2).max(MIN_BUDGET_TOKENS) };
    thinking["budget_tokens"] = fitting.into();
    let has_space = fitting == max_tokens / 2 || fitting.saturating_add(reserved_tokens) <= max_tokens;
    has_space.then_some((thinking, fitting != requested))
}

/// Removes sampling parameters that Anthropic rejects while thinking is enabled.
fn drop_conflicting_sampling(out: &mut Fields, dropped: &mut DroppedParams) {
    for key in ["temperature", "top_k"] {
        if out.shift_remove(key).is_some_and(|value| value != 1 && value != 1.0) {
            dropped.add(key);
        }
    }
}

/// Returns true if a signature of thinking may be Claude's own. Thinking of other models is not sent to Claude.
pub fn is_claude_signature(signature: &str) -> bool {
    !signature.is_empty() && !reasoning_details::is_encoded_in(signature)
}

/// Returns true if the request continues a tool call turn without its thinking blocks. Thinking cannot be enabled in
/// the middle of such a turn.
fn continues_without_thinking(request: &ChatRequest) -> bool {
    let is_result = |part: &Part| matches!(part, Part::ToolResult { .. });
    let thought = |part: &Part| match part {
        Part::Thinking { signature, .. } => signature.as_deref().is_some_and(is_claude_signature),
        part => matches!(part, Part::RedactedThinking { .. }),
    };
    let responses = |message: &&Message| message.role == Role::User && message.parts.iter().any(is_result);
    if !request.messages.last().is_some_and(|last| responses(&last)) {
        return false;
    }
    // A turn may span several messages.
    let turn =
        request.messages.iter().rev().skip_while(responses).take_while(|message| message.role == Role::Assistant);
    !turn.flat_map(|message| &message.parts).any(thought)
}
