//! State that features attach to the scheduler, to requests, to sequences and to streams. A field has the name of its feature.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::engine::features::{beams, diversity, explanations, forks, prompt_logprobs, speculation, transcripts};

pub(crate) enum FeatureCommand {
    /// Counted in [`SharedState::n_waiting`](crate::engine::metrics::SharedState::n_waiting).
    Forks(Box<forks::request::ForkRequest>),
}

/// State of the whole engine. The scheduler owns it.
#[derive(Default)]
pub(crate) struct SchedulerFeatures {
    pub(crate) explanations: explanations::history::History,
    pub(crate) forks: forks::ForkRegistry,
    pub(crate) prompt_logprobs: prompt_logprobs::cache::PromptLogprobCache,
    pub(crate) speculation: speculation::Speculator,
}

/// State that the worker shares with other threads.
#[derive(Default)]
pub(crate) struct SharedFeatures {
    pub(crate) transcripts: Mutex<transcripts::TranscriptCache>,
}

/// State of a stream, which its consumer reads.
#[derive(Clone, Default)]
pub(crate) struct StreamFeatures {
    pub(crate) explanations: Option<Arc<explanations::shared::SharedExplanation>>,
}

/// State of a request group, which its forks inherit.
#[derive(Clone, Default)]
pub(crate) struct GroupFeatures {
    /// Ranges of the prompt that this engine generated for earlier requests, in their original tokens.
    pub(crate) transcripts: Vec<Range<u32>>,
}

impl GroupFeatures {
    pub(crate) fn n_heap_bytes(&self) -> usize {
        let mut n = 0;
        n += size_of_val(&self.transcripts[..]);
        n
    }
}

/// State of branches with equal parameters.
#[derive(Default)]
pub(crate) struct SpecFeatures {
    pub(crate) diversity: Option<Arc<diversity::DistinctFirstTokens>>,
}

/// State of a sequence. A group has the state that its next sequence begins with.
#[derive(Default)]
pub(crate) struct SequenceFeatures {
    pub(crate) beams: Option<Box<beams::beam::Beam>>,
    pub(crate) diversity: Option<diversity::FirstToken>,
    pub(crate) explanations: Option<Arc<explanations::shared::SharedExplanation>>,
    pub(crate) prompt_logprobs: prompt_logprobs::pending::PendingPromptReport,
    /// Number of its first tokens that are grouped, while it shares no cells.
    pub(crate) self_extend: u32,
    pub(crate) speculation: Option<Box<speculation::drafts::SequenceDrafts>>,
}
