//! HTTP/3 over quinn with the guard that h3 0.0.8 needs, and bounded transport settings.
