//! Softmax(QKᵀ)V over cells of a unified pool.
