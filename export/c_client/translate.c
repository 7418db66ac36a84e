/* Translates stdin with an exported SavedModel, through TensorFlow's C API: no Python anywhere.
 *
 *   translate [--batch N] [--signature NAME] --operations FILE FOLDER < in.txt > out.txt
 *
 * A line in, a line out: "\n" and "\r" inside a translation become spaces. FILE is
 * tensorflow-text's _sentencepiece_tokenizer.so. FOLDER is an export, or a folder of numbered
 * exports, of which the highest is used. The exit code is 0 on success, 2 for a mistake in
 * the arguments or the folder, 1 for anything else.
 */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensorflow/c/c_api.h"

static void fail(int code, const char *what, const char *reason) {
  fprintf(stderr, "translate: %s: %s\n", what, reason);
  exit(code);
}

static void check(TF_Status *status, int code, const char *what) {
  if (TF_GetCode(status) != TF_OK) fail(code, what, TF_Message(status));
}

static void *allocate(void *old, size_t size) {
  void *memory = realloc(old, size);
  if (memory == NULL) fail(1, "stdin", "not enough memory");
  return memory;
}

static char *join(const char *folder, const char *name) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path = allocate(NULL, size);
  snprintf(path, size, "%s/%s", folder, name);
  return path;
}

static bool has_model(const char *folder) {
  char *path = join(folder, "saved_model.pb");
  bool is_there = access(path, F_OK) == 0;
  free(path);
  return is_there;
}

/* The folder, or the highest of the numbered exports in it, as `keras-transformer serve`. */
static const char *find_export(const char *folder) {
  DIR *entries = has_model(folder) ? NULL : opendir(folder);
  if (entries == NULL) return folder;
  char *highest_path = NULL;
  unsigned long long highest = 0;
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    if (entry->d_name[strspn(entry->d_name, "0123456789")] != '\0') continue;
    unsigned long long number = strtoull(entry->d_name, NULL, 10);
    char *path = join(folder, entry->d_name);
    if ((highest_path != NULL && number <= highest) || !has_model(path)) {
      free(path);
      continue;
    }
    free(highest_path);
    highest_path = path;
    highest = number;
  }
  closedir(entries);
  return highest_path == NULL ? folder : highest_path;
}

/* The signatures of a SavedModel stand in a serialized MetaGraphDef. Of its wire format only what
 * leads to the names of tensors is read:
 *   MetaGraphDef.signature_def = 5 (map to SignatureDef), SignatureDef.inputs = 1 and outputs = 2
 *   (maps to TensorInfo), TensorInfo.name = 1; a map is repeated entries of key = 1, value = 2. */
typedef struct {
  const uint8_t *at, *end;
} Bytes;

static bool read_varint(Bytes *bytes, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && bytes->at < bytes->end; shift += 7) {
    uint8_t byte = *bytes->at++;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/* Goes on to the next field `wanted` that has a length, and gives its content. */
static bool next_field(Bytes *message, uint64_t wanted, Bytes *content) {
  uint64_t tag, size;
  while (message->at < message->end && read_varint(message, &tag)) {
    switch (tag & 7) {
      case 0:
        if (!read_varint(message, &size)) return false;
        continue;
      case 1: size = 8; break;
      case 5: size = 4; break;
      case 2:
        if (!read_varint(message, &size)) return false;
        break;
      default: return false;
    }
    if (size > (uint64_t)(message->end - message->at)) return false;
    *content = (Bytes){message->at, message->at + size};
    message->at += size;
    if ((tag & 7) == 2 && tag >> 3 == wanted) return true;
  }
  return false;
}

/* The value of `key` in the map that is field `map` of the message. */
static bool find_in_map(Bytes message, uint64_t map, const char *key, Bytes *value) {
  Bytes entry, name;
  while (next_field(&message, map, &entry)) {
    Bytes again = entry;
    if (next_field(&entry, 1, &name) && (size_t)(name.end - name.at) == strlen(key) &&
        memcmp(name.at, key, strlen(key)) == 0)
      return next_field(&again, 2, value);
  }
  return false;
}

/* A tensor of a signature: `map` is 1 for an input, 2 for an output. */
static TF_Output find_tensor(TF_Graph *graph, Bytes signature, uint64_t map, const char *key) {
  Bytes info, name;
  if (!find_in_map(signature, map, key, &info) || !next_field(&info, 1, &name))
    fail(2, key, "the signature has no such input or output");
  char text[512];
  size_t size = (size_t)(name.end - name.at);
  if (size >= sizeof text) fail(2, key, "the name of its tensor is too long");
  memcpy(text, name.at, size);
  text[size] = '\0';
  char *colon = strrchr(text, ':');
  int index = colon == NULL ? 0 : atoi(colon + 1);
  if (colon != NULL) *colon = '\0';
  TF_Operation *operation = TF_GraphOperationByName(graph, text);
  if (operation == NULL) fail(2, text, "the graph has no such operation");
  return (TF_Output){operation, index};
}

typedef struct {
  TF_Session *session;
  TF_Graph *graph;
  TF_Output text, translation;
} Model;

static Model load(const char *folder, const char *signature_name, const char *operations) {
  TF_Status *status = TF_NewStatus();
  TF_Library *library = TF_LoadLibrary(operations, status);
  check(status, 2, operations);
  TF_DeleteLibraryHandle(library); /* The operations stay registered. */
  Model model = {.graph = TF_NewGraph()};
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Buffer *meta = TF_NewBuffer();
  const char *tags[] = {"serve"};
  model.session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, model.graph, meta,
                                               status);
  check(status, 2, folder);
  Bytes message = {meta->data, (const uint8_t *)meta->data + meta->length}, signature;
  if (!find_in_map(message, 5, signature_name, &signature))
    fail(2, signature_name, "the SavedModel has no such signature");
  model.text = find_tensor(model.graph, signature, 1, "text");
  model.translation = find_tensor(model.graph, signature, 2, "translation");
  TF_DeleteBuffer(meta);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  return model;
}

typedef struct {
  char *text;
  size_t size, room;
} Line;

static void translate(const Model *model, const Line *lines, int64_t count) {
  TF_Status *status = TF_NewStatus();
  TF_Tensor *texts = TF_AllocateTensor(TF_STRING, &count, 1, (size_t)count * sizeof(TF_TString));
  TF_TString *inputs = TF_TensorData(texts);
  for (int64_t i = 0; i < count; ++i) {
    TF_StringInit(&inputs[i]);
    TF_StringAssignView(&inputs[i], lines[i].text, lines[i].size);
  }
  TF_Tensor *translations = NULL;
  TF_SessionRun(model->session, NULL, &model->text, &texts, 1, &model->translation, &translations,
                1, NULL, 0, NULL, status);
  check(status, 1, "translating");
  if (TF_TensorType(translations) != TF_STRING || TF_TensorElementCount(translations) != count)
    fail(1, "translating", "the outputs are not one string for each line");
  TF_TString *outputs = TF_TensorData(translations);
  for (int64_t i = 0; i < count; ++i) {
    const char *text = TF_StringGetDataPointer(&outputs[i]);
    for (size_t at = 0; at < TF_StringGetSize(&outputs[i]); ++at)
      putchar(text[at] == '\n' || text[at] == '\r' ? ' ' : text[at]);
    putchar('\n');
    TF_StringDealloc(&outputs[i]);
  }
  if (fflush(stdout) != 0 || ferror(stdout)) fail(1, "stdout", "cannot be written");
  TF_DeleteTensor(translations);
  TF_DeleteTensor(texts);
  TF_DeleteStatus(status);
}

static void translate_stdin(const Model *model, int64_t batch) {
  Line *lines = allocate(NULL, (size_t)batch * sizeof *lines);
  memset(lines, 0, (size_t)batch * sizeof *lines);
  int64_t count = 0;
  ssize_t size;
  const char mark[] = "\xEF\xBB\xBF"; /* a byte order mark, which is no text */
  int is_first = 1;
  while ((size = getline(&lines[count].text, &lines[count].room, stdin)) >= 0) {
    Line *line = &lines[count++];
    if (is_first && size >= 3 && memcmp(line->text, mark, 3) == 0)
      memmove(line->text, line->text + 3, (size_t)(size -= 3));
    is_first = 0;
    if (size > 0 && line->text[size - 1] == '\n') --size;
    if (size > 0 && line->text[size - 1] == '\r') --size;
    line->size = (size_t)size;
    if (count == batch) {
      translate(model, lines, count);
      count = 0;
    }
  }
  if (ferror(stdin) || !feof(stdin)) fail(1, "stdin", "cannot be read");
  if (count > 0) translate(model, lines, count);
  for (int64_t i = 0; i < batch; ++i) free(lines[i].text);
  free(lines);
}

int main(int argc, char **argv) {
  const char *signature = "serving_default", *operations = NULL, *folder = NULL;
  long batch = 32;
  for (int i = 1; i < argc; ++i) {
    char *end = "";
    if (strncmp(argv[i], "--", 2) != 0 && folder == NULL) folder = argv[i];
    else if (strcmp(argv[i], "--signature") == 0 && i + 1 < argc) signature = argv[++i];
    else if (strcmp(argv[i], "--operations") == 0 && i + 1 < argc) operations = argv[++i];
    else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc) batch = strtol(argv[++i], &end, 10);
    else fail(2, argv[i], "expected [--batch N] [--signature NAME] --operations FILE FOLDER");
    if (*end != '\0' || batch < 1 || batch > 1 << 20) fail(2, "--batch", "expected 1 to 1048576");
  }
  if (folder == NULL) fail(2, "arguments", "expected the folder of a SavedModel");
  if (operations == NULL) fail(2, "arguments", "expected --operations _sentencepiece_tokenizer.so");
  Model model = load(find_export(folder), signature, operations);
  translate_stdin(&model, batch);
  TF_Status *status = TF_NewStatus();
  TF_CloseSession(model.session, status);
  TF_DeleteSession(model.session, status);
  TF_DeleteGraph(model.graph);
  TF_DeleteStatus(status);
  return 0;
}
