//! Version of a Claude model, which decides what the model accepts.

/// Parses the version of a Claude model from its name, whatever precedes or follows it: `claude-opus-4-7` is (4, 7).
/// Returns `None` for other models and for names without a number.
pub(crate) fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let numbers = name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    // Longer numbers are dates.
    let mut version = numbers.take_while(|number| *number < 100);
    version.next().map(|major| (major, version.next().unwrap_or(0)))
}

/// Thinking and sampling settings that a model accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThinkingMode {
    /// A budget in tokens.
    Budget,
    /// A budget, or adaptive thinking with an effort.
    BudgetOrAdaptive,
    /// Only adaptive thinking with an effort. The model rejects budgets and sampling parameters.
    AdaptiveOnly(DisableMode),
}

/// How thinking is disabled on a model with adaptive thinking only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisableMode {
    /// By leaving out `thinking`.
    Omitted,
    Explicit,
    /// Thinking cannot be disabled.
    Impossible,
}

impl ThinkingMode {
    pub(crate) fn for_model(model: &str) -> Self {
        let version = claude_version(model);
        match version {
            _ if ["claude-mythos", "claude-fable"].iter().any(|family| model.contains(family)) => {
                Self::AdaptiveOnly(DisableMode::Impossible)
            }
            None => Self::Budget,
            Some(version) if version < (4, 6) => Self::Budget,
            Some((4, 6)) => Self::BudgetOrAdaptive,
            Some((4, _)) => Self::AdaptiveOnly(DisableMode::Omitted),
            Some((5, 0)) => Self::AdaptiveOnly(DisableMode::Explicit),
            Some(_) => Self::AdaptiveOnly(DisableMode::Impossible),
        }
    }
}

/// Returns true if a model supports only adaptive thinking, which is controlled by an effort at most.
pub(crate) fn is_adaptive_only(model: &str) -> bool {
    matches!(ThinkingMode::for_model(model), ThinkingMode::AdaptiveOnly(_))
}
