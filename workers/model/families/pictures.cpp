// Folders of models that see pictures, too: their text half is one of the other tables, whichever
// their `text_config` names, and what else lies there is not read.
#include <string>
#include <utility>
#include <vector>

#include "workers/model/families/family.h"

namespace baton {
namespace {

/// Where the text half's tensors begin, and those of the other parts.
struct Halves {
  std::vector<std::string> roots;
  std::vector<std::string> others;
};

/// Older folders have the decoder whole, as language_model; newer ones have one model of all parts.
Halves towers(const std::vector<std::string>& more = {}) {
  Halves halves{{"language_model.model.", "model.language_model."}, {}};
  for (const std::string outer : {"", "model."}) {
    halves.others.push_back(outer + "vision_tower.");
    halves.others.push_back(outer + "multi_modal_projector.");
    for (const std::string& part : more) halves.others.push_back(outer + part);
  }
  return halves;
}

Halves visual() { return {{"model.language_model.", "model."}, {"visual.", "model.visual."}}; }

Halves smol() { return {{"model.text_model."}, {"model.vision_model.", "model.connector."}}; }

/// `text`: the text half's model type where text_config is missing or names none. `defaults`: what
/// keys mean that it leaves out, where that is not what they mean in the family.
Family folder(const std::string& architecture, const std::string& type, const std::string& text,
              Halves halves, const std::string& defaults = "{}",
              ExpertStorage experts = ExpertStorage::each) {
  Family family;
  family.architecture = architecture;
  family.model_type = type;
  family.text_of = text;
  family.text_defaults = defaults;
  family.names.roots = std::move(halves.roots);
  family.names.other_parts = std::move(halves.others);
  family.names.expert_storage = experts;
  return family;
}

Family tying_inside(Family folder) {
  folder.ties_inside = true;
  return folder;
}

}  // namespace

std::vector<Family> picture_families() {
  const std::string newline = "image_newline";  // a row's end, in a picture
  const std::string qwen2 = R"({"rope_theta": 1000000.0, "rms_norm_eps": 1e-5})";
  const std::string qwen3 = R"({"rope_theta": 500000.0})";
  return {
      folder("Mistral3ForConditionalGeneration", "mistral3", "mistral", towers()),
      folder("Gemma3ForConditionalGeneration", "gemma3", "gemma3_text", towers()),
      folder("LlavaForConditionalGeneration", "llava", "llama", towers()),
      folder("LlavaNextForConditionalGeneration", "llava_next", "llama", towers({newline})),
      tying_inside(folder("LlavaOnevisionForConditionalGeneration", "llava_onevision", "qwen2",
                          towers({newline}))),
      folder("InternVLForConditionalGeneration", "internvl", "qwen2", towers()),
      folder("AyaVisionForConditionalGeneration", "aya_vision", "cohere2", towers()),
      folder("Idefics3ForConditionalGeneration", "idefics3", "llama", smol()),
      folder("SmolVLMForConditionalGeneration", "smolvlm", "llama", smol()),
      tying_inside(folder("Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2", visual(), qwen2)),
      tying_inside(
          folder("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2", visual(), qwen2)),
      folder("Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3", visual(), qwen3),
      folder("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text", visual(),
             qwen3, ExpertStorage::stacked),
      tying_inside(folder("Glm4vForConditionalGeneration", "glm4v", "glm4v_text", visual())),
      tying_inside(folder("Glm4vMoeForConditionalGeneration", "glm4v_moe", "glm4_moe", visual(),
                          R"({"attention_bias": true})")),
  };
}

}  // namespace baton
