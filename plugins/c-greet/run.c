/* A minimal plugin in C, without libraries. See README.md.
 *
 * Values are spans of JSON text in the request. They are printed again without decoding their escapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REQUEST = 16 << 20, EX_CONFIG = 78 };

typedef struct {
    const char *at;
    int size;
} Span;

static const Span ABSENT = {"", 0};

static const char *blanks(const char *at) {
    return at + strspn(at, " \t\r\n");
}

static const char *after_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

/* A loop instead of recursion, so that a deeply nested request cannot exhaust the stack. */
static const char *after_value(const char *at) {
    int depth = 0;
    do {
        if (*at == '"') {
            at = after_string(at);
        } else if (*at && strchr("{[", *at)) {
            depth++, at++;
        } else if (*at && strchr("}]", *at)) {
            depth--, at++;
        } else if (*at && strchr(",: \t\r\n", *at)) {
            at++;
        } else {
            at += strcspn(at, "\"{}[],: \t\r\n");
        }
    } while (depth > 0 && *at);
    return at;
}

/* Return the value of `key` in `object`; ABSENT if there is none or if it is null. */
static Span member(Span object, const char *key) {
    if (*object.at != '{') return ABSENT;
    const char *at = blanks(object.at + 1);
    while (*at == '"') {
        const char *name = at + 1;
        at = after_string(at);
        int found = (size_t)(at - name - 1) == strlen(key) && !strncmp(name, key, strlen(key));
        at = blanks(at);
        if (*at != ':') break;
        const char *value = blanks(at + 1);
        at = after_value(value);
        Span span = {value, (int)(at - value)};
        if (found) return span.size == 4 && !strncmp(value, "null", 4) ? ABSENT : span;
        at = blanks(at);
        at = *at == ',' ? blanks(at + 1) : "";
    }
    return ABSENT;
}

static int is(Span span, const char *text) {
    return (size_t)span.size == strlen(text) && !strncmp(span.at, text, span.size);
}

/* Return the content of a JSON string, or `fallback` if it is absent. Exits with 78 for other or blank values. */
static Span setting(Span config, const char *key, const char *fallback) {
    Span value = member(config, key);
    if (!value.size) return (Span){fallback, (int)strlen(fallback)};
    if (*value.at == '"' && (int)strspn(value.at + 1, " ") < value.size - 2) return (Span){value.at + 1, value.size - 2};
    printf("{\"status\": \"error\", \"error\": \"%s must be non-blank text\", \"retry\": false}\n", key);
    exit(EX_CONFIG);
}

int main(void) {
    static char request[MAX_REQUEST + 1], message[MAX_REQUEST];
    request[fread(request, 1, MAX_REQUEST, stdin)] = '\0';
    Span all = {blanks(request), 0};
    if (!is(member(all, "protocol"), "2")) {
        fputs("unsupported protocol; c-greet supports protocol 2\n", stderr);
        return EX_CONFIG;
    }
    Span config = member(all, "config"), command = member(all, "command");
    Span greeting = setting(config, "greeting", "Hello"), name = setting(config, "name", "World");
    snprintf(message, sizeof message, "%.*s, %.*s!", greeting.size, greeting.at, name.size, name.at);

    if (is(command, "\"poll\"")) {
        printf("{\"status\": \"ok\", \"result\": \"%s\", \"state_updates\": {\"last_greeting\": \"%s\"},\n"
               " \"events\": [{\"type\": \"c-greet.greeted\", \"payload\": {\"message\": \"%s\", \"name\": \"%.*s\"}}]}\n",
               message, message, message, name.size, name.at);
    } else if (is(command, "\"health\"")) {
        printf("{\"status\": \"ok\", \"result\": \"healthy (greeting: %s)\"}\n", message);
    } else {
        puts("{\"status\": \"error\", \"error\": \"unknown command; known: poll, health\", \"retry\": false}");
    }
    return EXIT_SUCCESS;
}
