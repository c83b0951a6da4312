"""posenc inside other libraries' models. Each is imported when it is used, none by posenc."""
