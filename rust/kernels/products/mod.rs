//! Weights times rows of activations.
